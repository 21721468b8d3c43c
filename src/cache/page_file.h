// The files of a PageStore: one page of the cache, or the snapshot of a recurrent state at the end
// of one, behind a header that says which. Knows bytes alone: no folder, no threads, no cache.
//
// All numbers are little-endian.
//   0   magic, 16 bytes: "glint prefix 1\n\0"
//   16  kind, 4 bytes: 0 a page, 1 a snapshot
//   20  tokens of the page, 4 bytes: 64
//   24  fingerprint, 8 bytes: of all that decides the values of a page but its tokens
//   32  key, 16 bytes: names the page, from its parent's key and its tokens
//   48  the parent's key, 16 bytes; of a first page, what stands for the salt
//   64  salt, 8 bytes
//   72  content, in bytes: 8 bytes
//   80  checksum of the content, 8 bytes: XXH3, 64 bits
//   88  tokens, 64 times 4 bytes
//   344 checksum of all bytes before it, 8 bytes: XXH3, 64 bits
//   352 content, to the end of the file
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "cache/cache.h"

namespace glint {

struct StoreKey {
  std::uint64_t first = 0, second = 0;
  auto operator<=>(const StoreKey&) const = default;
};

enum class StoredKind : std::uint32_t { kPage = 0, kSnapshot = 1 };

// What a header says, but for the checksums.
struct StoredEntry {
  StoredKind kind = StoredKind::kPage;
  StoreKey key, parent;
  std::uint64_t salt = 0;
  std::uint64_t nbytes = 0;  // of the content
  std::array<std::int32_t, kPageSize> tokens = {};
};

inline constexpr std::size_t kStoredHeaderBytes = 352;
using StoredHeader = std::array<std::byte, kStoredHeaderBytes>;

std::uint64_t content_checksum(std::span<const std::byte> content);
StoredHeader write_header(const StoredEntry& entry, std::uint64_t fingerprint,
                          std::uint64_t checksum);

struct ParsedHeader {
  StoredEntry entry;
  std::uint64_t fingerprint = 0, checksum = 0;
};
// `bytes`: the start of a file of `file_size` bytes. Errors: kCorrupt, saying which field.
Result<ParsedHeader> parse_header(std::span<const std::byte> bytes, std::uint64_t file_size);

// Keys and fingerprints: hashes under a secret, so that nobody who does not know it can prepare
// texts whose keys meet.
class StoreHasher {
 public:
  static constexpr std::size_t kSecretBytes = 192;
  explicit StoreHasher(std::array<std::byte, kSecretBytes> secret) : secret_(secret) {}

  std::uint64_t fingerprint(std::span<const std::byte> identity) const;
  StoreKey root(std::uint64_t fingerprint, std::uint64_t salt) const;
  StoreKey key_after(const StoreKey& parent, std::span<const std::int32_t> tokens) const;

 private:
  StoreKey hash(std::span<const std::byte> bytes) const;
  std::array<std::byte, kSecretBytes> secret_;
};

}  // namespace glint
