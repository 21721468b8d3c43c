// The header of a GGUF file, version 3: magic, counts, typed metadata, tensor descriptions; then
// the tensors' bytes at aligned offsets. github.com/ggml-org/ggml, docs/gguf.md. Nothing is
// allocated for a count before the file is known to be long enough for it.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "checkpoint/file_kind.h"
#include "checkpoint/gguf.h"

namespace glint {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint32_t kVersion = 3;
constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMinAlignment = 8, kMaxAlignment = 1u << 20;
constexpr std::uint64_t kMaxNameBytes = 65535;  // the format's limit for keys
constexpr std::uint32_t kMaxDims = 4;           // ggml's

// Far above any real file, so that what a header costs in memory stays bounded.
constexpr std::uint64_t kMaxKeys = 1u << 16, kMaxTensors = 1u << 17;
constexpr std::uint64_t kMaxArrayElements = 1u << 24;  // of all arrays together

// The shortest key (one letter, one byte of value) and tensor description (one letter, one size).
constexpr std::uint64_t kMinKeyBytes = 8 + 1 + 4 + 1, kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

enum class ValueType : std::uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};

// By the numbers of enum ggml_type. The gaps were given up before version 3 or hold types that this
// program does not compute with.
struct TensorType {
  std::uint32_t number;
  DType dtype;
};
constexpr TensorType kTensorTypes[] = {
    {0, DType::kF32},      {1, DType::kF16},     {2, DType::kQ4_0},     {3, DType::kQ4_1},
    {6, DType::kQ5_0},     {7, DType::kQ5_1},    {8, DType::kQ8_0},     {10, DType::kQ2_K},
    {11, DType::kQ3_K},    {12, DType::kQ4_K},   {13, DType::kQ5_K},    {14, DType::kQ6_K},
    {16, DType::kIQ2_XXS}, {17, DType::kIQ2_XS}, {18, DType::kIQ3_XXS}, {19, DType::kIQ1_S},
    {20, DType::kIQ4_NL},  {21, DType::kIQ3_S},  {22, DType::kIQ2_S},   {23, DType::kIQ4_XS},
    {24, DType::kI8},      {25, DType::kI16},    {26, DType::kI32},     {27, DType::kI64},
    {28, DType::kF64},     {29, DType::kIQ1_M},  {30, DType::kBf16},    {39, DType::kMXFP4},
    {40, DType::kNVFP4},
};

struct UnreadType {
  std::uint32_t number;
  std::string_view name;
};
constexpr UnreadType kUnreadTypes[] = {
    {4, "Q4_2"},        {5, "Q4_3"},        {9, "Q8_1"},   {15, "Q8_K"},  {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"},   {34, "TQ1_0"}, {35, "TQ2_0"}, {36, "IQ4_NL_4_4"},
    {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {41, "Q1_0"},  {42, "Q2_0"},
};

std::string type_label(std::uint32_t number) {
  for (const UnreadType& type : kUnreadTypes) {
    if (type.number == number) return std::string(type.name);
  }
  return fmt::format("number {}", number);
}

std::uint64_t round_up_to(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> bytes, std::uint64_t file_size, std::string_view file)
      : bytes_(bytes), file_size_(file_size), file_(file) {}

  Result<GgufFile::Header> run() {
    GLINT_TRY_VOID(read_preamble());
    for (std::uint64_t i = 0; i < num_keys_; ++i) GLINT_TRY_VOID(read_key());
    GLINT_TRY(const std::uint64_t alignment, read_alignment());
    for (std::uint64_t i = 0; i < num_tensors_; ++i) GLINT_TRY_VOID(read_tensor(alignment));
    GLINT_TRY_VOID(place_tensors(alignment));
    return std::move(header_);
  }

 private:
  // ---- complaints: about the file, and in it the key or tensor being read

  std::string place() const {
    if (kind_.empty()) return std::string(file_);
    return fmt::format("{}: {} {}", file_, kind_, quote_name(name_));
  }
  Error corrupt_because(std::string_view reason) const {
    return corrupt(
        fmt::format("{}: {}; the file is damaged or not what it claims to be, fetch it again",
                    place(), reason));
  }
  Error truncated() const {
    return corrupt(
        fmt::format("{} is truncated: its {} bytes end inside the header, at {} {}; incomplete "
                    "download? Fetch it again",
                    file_, file_size_, kind_.empty() ? "its start" : kind_, quote_name(name_)));
  }
  void now_at(std::string_view kind, std::string_view name) {
    kind_ = kind;
    name_ = name;
  }

  // ---- bytes

  std::uint64_t left() const { return bytes_.size() - at_; }

  template <typename T>
  Result<T> read() {
    if (left() < sizeof(T)) return truncated();
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  Result<std::string_view> read_string() {
    GLINT_TRY(const auto length, read<std::uint64_t>());
    if (length > left()) {
      return corrupt_because(fmt::format(
          "a string of {} bytes does not fit the {} bytes that are left", length, left()));
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return text;
  }

  Result<std::string_view> read_name(std::string_view kind) {
    GLINT_TRY(const std::string_view name, read_string());
    if (name.empty())
      return corrupt_because(fmt::format("the {} after it has an empty name", kind));
    if (name.size() > kMaxNameBytes) {
      return corrupt_because(
          fmt::format("the {} after it has a name of {} bytes", kind, name.size()));
    }
    now_at(kind, name);
    return name;
  }

  // ---- the parts

  Status read_preamble() {
    if (bytes_.size() < kMagic.size() ||
        std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) != 0) {
      if (const auto kind = foreign_kind(bytes_)) return wrong_kind(file_, *kind);
      return corrupt(fmt::format("{} is not a GGUF file: it does not begin with \"GGUF\"", file_));
    }
    at_ = kMagic.size();
    GLINT_TRY(const auto version, read<std::uint32_t>());
    if (version == std::byteswap(kVersion)) {
      return unsupported(fmt::format(
          "{} is a big-endian GGUF file; convert the model for little-endian machines", file_));
    }
    if (version != kVersion) {
      return unsupported(fmt::format(
          "{} is GGUF version {}; only version {} is read: convert the model again with "
          "a current converter",
          file_, version, kVersion));
    }
    GLINT_TRY(num_tensors_, read<std::uint64_t>());
    GLINT_TRY(num_keys_, read<std::uint64_t>());
    GLINT_TRY_VOID(check_count("keys", num_keys_, kMinKeyBytes, kMaxKeys));
    return check_count("tensors", num_tensors_, kMinTensorBytes, kMaxTensors);
  }

  Status check_count(std::string_view what, std::uint64_t count, std::uint64_t min_bytes,
                     std::uint64_t most) const {
    if (count <= most && count <= left() / min_bytes) return {};
    return corrupt(fmt::format(
        "{} claims {} {}, more than {}; the file is damaged or truncated, fetch it again", file_,
        count, what,
        count > most ? "any model has" : fmt::format("its {} bytes can hold", file_size_)));
  }

  Status read_key() {
    GLINT_TRY(const std::string_view name, read_name("key"));
    GLINT_TRY(const auto type, read<std::uint32_t>());
    GLINT_TRY(GgufValue value, read_value(static_cast<ValueType>(type)));
    if (!header_.metadata.try_emplace(std::string(name), std::move(value)).second) {
      return corrupt_because("it is there twice");
    }
    return {};
  }

  Result<GgufValue> read_value(ValueType type) {
    if (type == ValueType::kArray) return read_array();
    GLINT_TRY(GgufScalar scalar, read_scalar(type));
    return GgufValue{scalar};
  }

  template <typename T>
  Result<GgufScalar> read_integer() {
    GLINT_TRY(const T value, read<T>());
    if (std::in_range<std::int64_t>(value)) return GgufScalar(static_cast<std::int64_t>(value));
    return GgufScalar(static_cast<std::uint64_t>(value));
  }

  Result<bool> read_bool() {
    GLINT_TRY(const auto value, read<std::uint8_t>());
    if (value > 1) return corrupt_because(fmt::format("{} is no truth value", value));
    return value == 1;
  }

  Result<GgufScalar> read_scalar(ValueType type) {
    switch (type) {
      case ValueType::kUint8:
        return read_integer<std::uint8_t>();
      case ValueType::kInt8:
        return read_integer<std::int8_t>();
      case ValueType::kUint16:
        return read_integer<std::uint16_t>();
      case ValueType::kInt16:
        return read_integer<std::int16_t>();
      case ValueType::kUint32:
        return read_integer<std::uint32_t>();
      case ValueType::kInt32:
        return read_integer<std::int32_t>();
      case ValueType::kUint64:
        return read_integer<std::uint64_t>();
      case ValueType::kInt64:
        return read_integer<std::int64_t>();
      case ValueType::kFloat32: {
        GLINT_TRY(const auto value, read<float>());
        return GgufScalar(static_cast<double>(value));
      }
      case ValueType::kFloat64: {
        GLINT_TRY(const auto value, read<double>());
        return GgufScalar(value);
      }
      case ValueType::kBool: {
        GLINT_TRY(const bool value, read_bool());
        return GgufScalar(value);
      }
      case ValueType::kString: {
        GLINT_TRY(const std::string_view value, read_string());
        return GgufScalar(value);
      }
      case ValueType::kArray:
        break;
    }
    return corrupt_because(
        fmt::format("value type {} is not one of the format's", static_cast<std::uint32_t>(type)));
  }

  Result<GgufValue> read_array() {
    GLINT_TRY(const auto number, read<std::uint32_t>());
    GLINT_TRY(const auto count, read<std::uint64_t>());
    const auto type = static_cast<ValueType>(number);
    if (type == ValueType::kArray) {
      return unsupported(place() + ": an array of arrays, which no known key holds, is not read");
    }
    if (number > static_cast<std::uint32_t>(ValueType::kFloat64)) {
      return corrupt_because(fmt::format("value type {} is not one of the format's", number));
    }
    // A string needs its length's eight bytes, anything else one or more.
    const std::uint64_t fits = left() / (type == ValueType::kString ? 8 : 1);
    if (count > fits || count > kMaxArrayElements - array_elements_) {
      return corrupt_because(fmt::format("an array of {} elements does not fit", count));
    }
    array_elements_ += count;
    return read_elements(type, count);
  }

  Result<GgufValue> read_elements(ValueType type, std::uint64_t count) {
    switch (type) {
      case ValueType::kString: {
        std::vector<std::string_view> list;
        list.reserve(count);
        for (std::uint64_t i = 0; i < count; ++i) {
          GLINT_TRY(const std::string_view text, read_string());
          list.push_back(text);
        }
        return GgufValue{std::move(list)};
      }
      case ValueType::kBool: {
        std::vector<bool> list;
        list.reserve(count);
        for (std::uint64_t i = 0; i < count; ++i) {
          GLINT_TRY(const bool value, read_bool());
          list.push_back(value);
        }
        return GgufValue{std::move(list)};
      }
      case ValueType::kFloat32:
      case ValueType::kFloat64:
        return read_list<double>(type, count);
      default:
        return read_list<std::int64_t>(type, count);
    }
  }

  template <typename T>
  Result<GgufValue> read_list(ValueType type, std::uint64_t count) {
    std::vector<T> list;
    list.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      GLINT_TRY(const GgufScalar scalar, read_scalar(type));
      const T* value = std::get_if<T>(&scalar);
      if (value == nullptr) return corrupt_because("an element of the array exceeds 2^63 - 1");
      list.push_back(*value);
    }
    return GgufValue{std::move(list)};
  }

  Result<std::uint64_t> read_alignment() {
    const auto found = header_.metadata.find(kAlignmentKey);
    if (found == header_.metadata.end()) return kDefaultAlignment;
    now_at("key", found->first);
    const auto* scalar = std::get_if<GgufScalar>(&found->second.value);
    const auto* value = scalar == nullptr ? nullptr : std::get_if<std::int64_t>(scalar);
    if (value == nullptr) return corrupt_because("it is not an integer");
    const auto alignment = static_cast<std::uint64_t>(*value);
    if (*value < 0 || alignment < kMinAlignment || alignment > kMaxAlignment ||
        !std::has_single_bit(alignment)) {
      return corrupt_because(fmt::format("{} is not a power of two from {} to {}", *value,
                                         kMinAlignment, kMaxAlignment));
    }
    return alignment;
  }

  Status read_tensor(std::uint64_t alignment) {
    GLINT_TRY(const std::string_view name, read_name("tensor"));
    if (!tensor_names_.insert(name).second) return corrupt_because("it is there twice");
    GLINT_TRY(std::vector<std::int64_t> shape, read_shape());
    GLINT_TRY(const DType dtype, read_dtype());
    GLINT_TRY(const std::uint64_t nbytes, bytes_of(dtype, shape));
    GLINT_TRY(const auto offset, read<std::uint64_t>());
    if (offset % alignment != 0) {
      return corrupt_because(
          fmt::format("its offset {} is not a multiple of the alignment {}", offset, alignment));
    }
    std::uint64_t end = 0;
    if (__builtin_add_overflow(offset, nbytes, &end))
      return corrupt_because("its offset overflows");
    header_.tensors.push_back({std::string(name), dtype, std::move(shape), offset, end});
    return {};
  }

  Result<std::vector<std::int64_t>> read_shape() {
    GLINT_TRY(const auto dims, read<std::uint32_t>());
    if (dims == 0 || dims > kMaxDims) {
      return corrupt_because(fmt::format("{} dimensions are not from 1 to {}", dims, kMaxDims));
    }
    std::vector<std::int64_t> shape(dims);
    // The file lists the fastest dimension first.
    for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
      GLINT_TRY(*size, read<std::int64_t>());
      if (*size <= 0) return corrupt_because("one of its sizes is not from 1 to 2^63 - 1");
    }
    return shape;
  }

  Result<DType> read_dtype() {
    GLINT_TRY(const auto number, read<std::uint32_t>());
    for (const TensorType& type : kTensorTypes) {
      if (type.number == number) return type.dtype;
    }
    return unsupported(
        fmt::format("{}: ggml type {} is not supported by this version of glint; use another "
                    "quantisation of the model",
                    place(), type_label(number)));
  }

  Result<std::uint64_t> bytes_of(DType dtype, const std::vector<std::int64_t>& shape) const {
    const BlockSize block = block_size(dtype);
    const auto row = static_cast<std::uint64_t>(shape.back());
    if (row % block.elements != 0) {
      return corrupt_because(fmt::format("its rows of {} are not whole blocks of {} ({})", row,
                                         block.elements, dtype_name(dtype)));
    }
    // Elements are counted too: a reader of this shape multiplies them.
    std::uint64_t elements = 1, nbytes = 0;
    bool fits = true;
    for (const std::int64_t size : shape) {
      fits = fits && !__builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements);
    }
    fits = fits && !__builtin_mul_overflow(elements / block.elements, block.bytes, &nbytes) &&
           std::in_range<std::int64_t>(elements) && std::in_range<std::int64_t>(nbytes);
    if (!fits) return corrupt_because("its shape overflows 2^63");
    return nbytes;
  }

  // From offsets behind the header to offsets in the file; all inside it, none overlapping.
  Status place_tensors(std::uint64_t alignment) {
    const std::uint64_t data_begin = round_up_to(at_, alignment);
    const std::uint64_t data_bytes = file_size_ > data_begin ? file_size_ - data_begin : 0;
    std::vector<GgufFile::Header::Tensor*> order;
    order.reserve(header_.tensors.size());
    for (auto& tensor : header_.tensors) order.push_back(&tensor);
    std::sort(order.begin(), order.end(),
              [](const auto* a, const auto* b) { return a->begin < b->begin; });
    const GgufFile::Header::Tensor* before = nullptr;
    for (auto* tensor : order) {
      now_at("tensor", tensor->name);
      if (tensor->end > data_bytes) {
        return corrupt(fmt::format(
            "{} is truncated: tensor {} ends at byte {} of its data, the file holds {}; "
            "incomplete download? Fetch it again",
            file_, quote_name(tensor->name), tensor->end, data_bytes));
      }
      if (before != nullptr && tensor->begin < before->end) {
        return corrupt_because(
            fmt::format("its bytes overlap those of {}", quote_name(before->name)));
      }
      before = tensor;
    }
    for (auto& tensor : header_.tensors) {
      tensor.begin += data_begin;
      tensor.end += data_begin;
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  std::uint64_t file_size_;
  std::string_view file_;
  std::size_t at_ = 0;
  std::string_view kind_, name_;  // what is being read
  std::uint64_t num_tensors_ = 0, num_keys_ = 0, array_elements_ = 0;
  std::set<std::string_view> tensor_names_;
  GgufFile::Header header_;
};

}  // namespace

Result<GgufFile::Header> GgufFile::parse(std::span<const std::byte> bytes, std::uint64_t file_size,
                                         std::string_view file_name) {
  return HeaderParser(bytes, file_size, file_name).run();
}

}  // namespace glint
