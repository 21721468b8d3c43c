// The GGUF header parser on any bytes: it never reads outside them, and what it accepts is
// consistent.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "base/check.h"
#include "checkpoint/gguf.h"

namespace {

using namespace glint;

void check_inside(std::span<const std::byte> bytes, std::string_view text) {
  const auto* begin = reinterpret_cast<const char*>(bytes.data());
  GLINT_CHECK(text.data() >= begin && text.data() + text.size() <= begin + bytes.size());
}

void check_value(std::span<const std::byte> bytes, const GgufValue& value) {
  if (const auto* scalar = std::get_if<GgufScalar>(&value.value)) {
    if (const auto* text = std::get_if<std::string_view>(scalar)) check_inside(bytes, *text);
  } else if (const auto* texts = std::get_if<std::vector<std::string_view>>(&value.value)) {
    for (const std::string_view text : *texts) check_inside(bytes, text);
  }
}

void check_tensor(const GgufFile::Header::Tensor& tensor, std::uint64_t file_size) {
  const BlockSize block = block_size(tensor.dtype);
  GLINT_CHECK(!tensor.name.empty() && !tensor.shape.empty());
  std::uint64_t elements = 1;
  for (const std::int64_t size : tensor.shape) {
    GLINT_CHECK(size > 0 &&
                !__builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements));
  }
  GLINT_CHECK(static_cast<std::uint64_t>(tensor.shape.back()) % block.elements == 0);
  GLINT_CHECK(tensor.begin <= tensor.end && tensor.end <= file_size);
  GLINT_CHECK(tensor.end - tensor.begin == elements / block.elements * block.bytes);
}

void parse(std::span<const std::byte> bytes, std::uint64_t file_size) {
  const auto header = GgufFile::parse(bytes, file_size, "fuzz");
  if (!header) {
    GLINT_CHECK(!header.error().message.empty() && header.error().message.size() < 2000);
    return;
  }
  for (const auto& [key, value] : header->metadata) {
    GLINT_CHECK(!key.empty());
    check_value(bytes, value);
  }
  for (const auto& tensor : header->tensors) check_tensor(tensor, file_size);
}

}  // namespace

// Once as a whole file, and once as the header of a large one, so that tensors need not fit.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  parse(bytes, size);
  parse(bytes, size + (std::uint64_t{1} << 30));
  return 0;
}
