#include "cache/page_file.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace glint {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic{"glint prefix 1\n\0", 16};
constexpr std::size_t kCoveredBytes = kStoredHeaderBytes - sizeof(std::uint64_t);

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

class FieldWriter {
 public:
  explicit FieldWriter(StoredHeader& out) : out_(out) {}
  void bytes(const void* from, std::size_t n) {
    GLINT_CHECK(n <= out_.size() - at_);
    std::memcpy(out_.data() + at_, from, n);
    at_ += n;
  }
  template <typename T>
  void number(T value) {
    bytes(&value, sizeof value);
  }
  std::size_t at() const { return at_; }

 private:
  StoredHeader& out_;
  std::size_t at_ = 0;
};

class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> from) : from_(from) {}
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, from_.data(), sizeof value);
    from_ = from_.subspan(sizeof value);
    return value;
  }

 private:
  std::span<const std::byte> from_;
};

}  // namespace

std::uint64_t content_checksum(std::span<const std::byte> content) {
  return checksum_of(content);
}

StoredHeader write_header(const StoredEntry& entry, std::uint64_t fingerprint,
                          std::uint64_t checksum) {
  StoredHeader header{};
  FieldWriter out(header);
  out.bytes(kMagic.data(), kMagic.size());
  out.number(static_cast<std::uint32_t>(entry.kind));
  out.number(static_cast<std::uint32_t>(kPageSize));
  out.number(fingerprint);
  out.number(entry.key.first);
  out.number(entry.key.second);
  out.number(entry.parent.first);
  out.number(entry.parent.second);
  out.number(entry.salt);
  out.number(entry.nbytes);
  out.number(checksum);
  out.bytes(entry.tokens.data(), sizeof entry.tokens);
  GLINT_CHECK(out.at() == kCoveredBytes);
  out.number(checksum_of(std::span(header).first(kCoveredBytes)));
  return header;
}

Result<ParsedHeader> parse_header(std::span<const std::byte> bytes, std::uint64_t file_size) {
  if (bytes.size() < kStoredHeaderBytes || file_size < kStoredHeaderBytes)
    return corrupt("it is shorter than its header");
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return corrupt("it is no page of a cache, or of another version");
  FieldReader sum(bytes.subspan(kCoveredBytes));
  if (sum.number<std::uint64_t>() != checksum_of(bytes.first(kCoveredBytes)))
    return corrupt("the checksum of its header is wrong");
  FieldReader in(bytes.subspan(kMagic.size()));
  ParsedHeader header;
  const auto kind = in.number<std::uint32_t>();
  if (kind > static_cast<std::uint32_t>(StoredKind::kSnapshot))
    return corrupt(fmt::format("its kind {} is unknown", kind));
  header.entry.kind = static_cast<StoredKind>(kind);
  if (const auto tokens = in.number<std::uint32_t>(); tokens != kPageSize)
    return corrupt(fmt::format("its pages have {} tokens and not {}", tokens, kPageSize));
  header.fingerprint = in.number<std::uint64_t>();
  header.entry.key.first = in.number<std::uint64_t>();
  header.entry.key.second = in.number<std::uint64_t>();
  header.entry.parent.first = in.number<std::uint64_t>();
  header.entry.parent.second = in.number<std::uint64_t>();
  header.entry.salt = in.number<std::uint64_t>();
  header.entry.nbytes = in.number<std::uint64_t>();
  header.checksum = in.number<std::uint64_t>();
  if (header.entry.nbytes != file_size - kStoredHeaderBytes) {
    return corrupt(fmt::format("it has {} bytes of content and not {}",
                               file_size - kStoredHeaderBytes, header.entry.nbytes));
  }
  for (std::int32_t& token : header.entry.tokens) token = in.number<std::int32_t>();
  return header;
}

StoreKey StoreHasher::hash(std::span<const std::byte> bytes) const {
  const XXH128_hash_t h =
      XXH3_128bits_withSecret(bytes.data(), bytes.size(), secret_.data(), secret_.size());
  return {h.high64, h.low64};
}

std::uint64_t StoreHasher::fingerprint(std::span<const std::byte> identity) const {
  return hash(identity).first;
}

StoreKey StoreHasher::root(std::uint64_t fingerprint, std::uint64_t salt) const {
  const std::array<std::uint64_t, 2> both = {fingerprint, salt};
  return hash(std::as_bytes(std::span(both)));
}

StoreKey StoreHasher::key_after(const StoreKey& parent,
                                std::span<const std::int32_t> tokens) const {
  GLINT_CHECK(tokens.size() == kPageSize);
  std::array<std::byte, sizeof(StoreKey) + kPageSize * sizeof(std::int32_t)> all;
  std::memcpy(all.data(), &parent, sizeof parent);
  std::memcpy(all.data() + sizeof parent, tokens.data(), tokens.size_bytes());
  return hash(all);
}

}  // namespace glint
