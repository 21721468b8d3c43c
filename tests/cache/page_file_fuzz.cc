// The header of a stored page on any bytes: what is accepted says all that the bytes say, so that
// it is written again as it was. The checksum is put right first, else nothing would get past it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "cache/page_file.h"

namespace {

using namespace glint;

void check(std::span<const std::byte> bytes, std::uint64_t file_size) {
  const auto parsed = parse_header(bytes, file_size);
  if (!parsed.has_value()) return;
  const StoredHeader again = write_header(parsed->entry, parsed->fingerprint, parsed->checksum);
  GLINT_CHECK(std::ranges::equal(again, bytes.first(kStoredHeaderBytes)));
  GLINT_CHECK(parsed->entry.nbytes == file_size - kStoredHeaderBytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  check(bytes, size);
  if (size < kStoredHeaderBytes) return 0;
  StoredHeader header;
  std::copy_n(bytes.begin(), header.size(), header.begin());
  constexpr std::size_t kCovered = kStoredHeaderBytes - sizeof(std::uint64_t);
  const std::uint64_t sum = content_checksum(std::span(header).first(kCovered));
  std::memcpy(header.data() + kCovered, &sum, sizeof sum);
  check(header, size);
  std::uint64_t nbytes = 0;
  std::memcpy(&nbytes, header.data() + 72, sizeof nbytes);
  check(header, kStoredHeaderBytes + nbytes);
  return 0;
}
