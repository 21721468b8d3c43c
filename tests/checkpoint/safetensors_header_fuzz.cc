// The safetensors header parser on any bytes: it never reads outside them, and what it accepts is
// consistent.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "checkpoint/checkpoint.h"

namespace {

using namespace glint;

void parse(std::span<const std::byte> head, std::uint64_t file_size) {
  const auto entries = parse_safetensors_header(head, file_size, "fuzz");
  if (!entries) {
    GLINT_CHECK(!entries.error().message.empty() && entries.error().message.size() < 2000);
    return;
  }
  std::uint64_t covered = entries->empty() ? file_size : entries->front().begin;
  for (const SafetensorsEntry& entry : *entries) {
    GLINT_CHECK(entry.begin == covered && entry.begin <= entry.end && entry.end <= file_size);
    std::uint64_t nbytes = dtype_bytes(entry.dtype);
    for (const std::int64_t size : entry.shape) {
      GLINT_CHECK(size >= 0 &&
                  !__builtin_mul_overflow(nbytes, static_cast<std::uint64_t>(size), &nbytes));
    }
    GLINT_CHECK(nbytes == entry.end - entry.begin);
    covered = entry.end;
  }
  GLINT_CHECK(covered == file_size);
}

}  // namespace

// Once as a whole file, and once as the JSON alone behind a length that fits, so that mutations
// need not repair it; then the last two bytes say how much data follows.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  parse(bytes, size);
  if (size < 2) return 0;
  const std::size_t length = size - 2;
  std::vector<std::byte> file(8 + length);
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(length >> (8 * i));
  if (length != 0) std::memcpy(file.data() + 8, data, length);
  parse(file, file.size() + data[length] + 256u * data[length + 1]);
  return 0;
}
