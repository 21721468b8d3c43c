// The safetensors container: 8 bytes little-endian header length, a JSON header, then the tensors'
// bytes without gaps. https://huggingface.co/docs/safetensors. The checks are those of the format's
// reference implementation and, beyond it, duplicate names and shapes whose element count overflows
// whatever order it is multiplied in.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "checkpoint/checkpoint.h"
#include "checkpoint/file_kind.h"

namespace glint {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr int kMaxHeaderDepth = 8;                      // a valid one needs 3

// In the format's list, but not among the types this program reads.
constexpr std::string_view kNamedButUnread[] = {"F4",          "F6_E2M3",     "F6_E3M2",
                                                "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"};

// Where a complaint is about: the file, and in it the tensor.
struct Place {
  std::string_view file;
  std::string_view tensor;

  Error corrupt_because(std::string_view reason) const {
    return corrupt(fmt::format(
        "{}: tensor {}: {}; the file is damaged or not what it claims to be, fetch it again", file,
        quote_name(tensor), reason));
  }
};

Result<DType> read_dtype(const Place& place, const Json& entry) {
  const Json* name = entry.find("dtype");
  if (name == nullptr || !name->is_string()) return place.corrupt_because("it has no dtype");
  if (const auto dtype = dtype_from_name(name->as_string())) return *dtype;
  if (name->as_string() == "F8_E8M0") return DType::kU8;  // an exponent, as others store it
  if (std::find(std::begin(kNamedButUnread), std::end(kNamedButUnread), name->as_string()) !=
      std::end(kNamedButUnread)) {
    return unsupported(fmt::format(
        "{}: tensor {}: dtype {} is not supported by this version of glint; use a bf16 checkpoint",
        place.file, quote_name(place.tensor), name->as_string()));
  }
  return place.corrupt_because(fmt::format("unknown dtype {}", quote_name(name->as_string())));
}

Result<std::vector<std::int64_t>> read_shape(const Place& place, const Json& entry) {
  const Json* list = entry.find("shape");
  if (list == nullptr || !list->is_array()) return place.corrupt_because("it has no shape");
  std::vector<std::int64_t> shape;
  shape.reserve(list->as_array().size());
  for (const Json& size : list->as_array()) {
    if (!size.is_int() || size.as_int() < 0) {
      return place.corrupt_because("its shape holds something other than sizes from 0 to 2^63 - 1");
    }
    shape.push_back(size.as_int());
  }
  return shape;
}

// Zero sizes are left out of the product while it is checked: a later reader may multiply in
// another order.
Result<std::uint64_t> bytes_of(const Place& place, DType dtype,
                               const std::vector<std::int64_t>& shape) {
  std::uint64_t nbytes = dtype_bytes(dtype);
  bool none = false;
  for (const std::int64_t size : shape) {
    if (size == 0) none = true;
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
    if (nbytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / factor) {
      return place.corrupt_because("its shape overflows 2^63 bytes");
    }
    nbytes *= factor;
  }
  return none ? 0 : nbytes;
}

struct Offsets {
  std::uint64_t begin;
  std::uint64_t end;
};

Result<Offsets> read_offsets(const Place& place, const Json& entry) {
  const Json* pair = entry.find("data_offsets");
  const auto is_offset = [](const Json& v) { return v.is_int() && v.as_int() >= 0; };
  if (pair == nullptr || !pair->is_array() || pair->as_array().size() != 2 ||
      !is_offset(pair->as_array()[0]) || !is_offset(pair->as_array()[1])) {
    return place.corrupt_because("its data_offsets are not two offsets from 0 to 2^63 - 1");
  }
  const Offsets offsets{static_cast<std::uint64_t>(pair->as_array()[0].as_int()),
                        static_cast<std::uint64_t>(pair->as_array()[1].as_int())};
  if (offsets.begin > offsets.end)
    return place.corrupt_because("its data_offsets end before they begin");
  return offsets;
}

Result<SafetensorsEntry> read_entry(const Place& place, const Json& value) {
  if (!value.is_object()) return place.corrupt_because("its description is not an object");
  GLINT_TRY(const DType dtype, read_dtype(place, value));
  GLINT_TRY(auto shape, read_shape(place, value));
  GLINT_TRY(const std::uint64_t nbytes, bytes_of(place, dtype, shape));
  GLINT_TRY(const Offsets offsets, read_offsets(place, value));
  if (offsets.end - offsets.begin != nbytes) {
    return place.corrupt_because(
        fmt::format("its shape and dtype need {} bytes, its data_offsets hold {}", nbytes,
                    offsets.end - offsets.begin));
  }
  return SafetensorsEntry{std::string(place.tensor), dtype, std::move(shape), offsets.begin,
                          offsets.end};
}

Status check_metadata(std::string_view file, const Json& value) {
  if (value.is_null()) return {};
  bool fine = value.is_object();
  if (fine) {
    for (const auto& [key, text] : value.as_object()) fine = fine && text.is_string();
  }
  if (fine) return {};
  return corrupt(
      fmt::format("{}: __metadata__ of its header is not a map of strings; fetch it again", file));
}

// Entries sorted by offset must tile [0, data_bytes) exactly.
Status check_tiling(std::string_view file, const std::vector<SafetensorsEntry>& entries,
                    std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  const SafetensorsEntry* before = nullptr;
  for (const SafetensorsEntry& entry : entries) {
    const Place place{file, entry.name};
    if (entry.end > data_bytes) {
      return corrupt(fmt::format(
          "{} is truncated: tensor {} ends at byte {} of its data, the file holds {}; incomplete "
          "download? Fetch it again",
          file, quote_name(entry.name), entry.end, data_bytes));
    }
    if (entry.begin < covered) {
      return place.corrupt_because(
          fmt::format("its bytes overlap those of {}", quote_name(before->name)));
    }
    if (entry.begin > covered) {
      return place.corrupt_because(
          fmt::format("{} bytes before it belong to no tensor", entry.begin - covered));
    }
    covered = entry.end;
    before = &entry;
  }
  if (covered != data_bytes) {
    return corrupt(fmt::format(
        "{}: {} bytes after the last tensor belong to none; the file is damaged, fetch it again",
        file, data_bytes - covered));
  }
  return {};
}

Result<std::string_view> header_text(std::span<const std::byte> head, std::uint64_t file_size,
                                     std::string_view file) {
  if (file_size < kLengthBytes || head.size() < kLengthBytes) {
    return corrupt(
        fmt::format("{} is truncated: {} bytes are too few for a safetensors file; incomplete "
                    "download? Fetch it again",
                    file, file_size));
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | static_cast<std::uint64_t>(head[static_cast<std::size_t>(i)]);
  if (length > kMaxHeaderBytes) {
    if (const auto kind = foreign_kind(head)) return wrong_kind(file, *kind);
    return corrupt(
        fmt::format("{} is not a safetensors file: its header claims {} bytes, more than the "
                    "format's limit of {}",
                    file, length, kMaxHeaderBytes));
  }
  if (length > std::min<std::uint64_t>(file_size, head.size()) - kLengthBytes) {
    return corrupt(
        fmt::format("{} is truncated: its header needs {} bytes, the file has {}; incomplete "
                    "download? Fetch it again",
                    file, length + kLengthBytes, file_size));
  }
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes, length);
  if (!text.starts_with('{'))
    return corrupt(fmt::format("{} is not a safetensors file: its header is no JSON object", file));
  return text;
}

}  // namespace

Result<std::vector<SafetensorsEntry>> parse_safetensors_header(std::span<const std::byte> head,
                                                               std::uint64_t file_size,
                                                               std::string_view file_name) {
  GLINT_TRY(const std::string_view text, header_text(head, file_size, file_name));
  const auto header = parse_json(
      text,
      {.max_depth = kMaxHeaderDepth, .max_bytes = kMaxHeaderBytes, .refuse_duplicate_keys = true});
  if (!header) {
    return corrupt(fmt::format("{}: safetensors header: {}; fetch the file again", file_name,
                               header.error().message));
  }
  std::vector<SafetensorsEntry> entries;
  entries.reserve(header->as_object().size());
  for (const auto& [name, value] : header->as_object()) {
    if (name == "__metadata__") {
      GLINT_TRY_VOID(check_metadata(file_name, value));
      continue;
    }
    GLINT_TRY(SafetensorsEntry entry, read_entry({file_name, name}, value));
    entries.push_back(std::move(entry));
  }
  // An empty tensor shares its offset with the next one and comes first.
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  const std::uint64_t data_begin = kLengthBytes + text.size();
  GLINT_TRY_VOID(check_tiling(file_name, entries, file_size - data_begin));
  for (SafetensorsEntry& entry : entries) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  return entries;
}

Result<std::vector<TensorRef>> parse_safetensors(std::shared_ptr<const MappedFile> file) {
  const std::span<const std::byte> bytes = file->bytes();
  GLINT_TRY(auto entries, parse_safetensors_header(bytes, bytes.size(), file->path().string()));
  std::vector<TensorRef> tensors;
  tensors.reserve(entries.size());
  for (SafetensorsEntry& entry : entries) {
    tensors.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                       bytes.subspan(entry.begin, entry.end - entry.begin), file});
  }
  return tensors;
}

}  // namespace glint
