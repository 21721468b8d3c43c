// The store on disk: what its files promise, what damaged ones do, what makes room for what, and
// that a cache finds in it what an earlier one left.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>

#include "../base/temp_folder.h"
#include "cache/cache.h"
#include "cache/page_store.h"
#include "cache/store_jobs.h"

namespace glint {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<std::int32_t>;

Tokens iota_tokens(int n, int first = 0) {
  Tokens tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

constexpr std::size_t kRowBytes = 8;
constexpr std::uint64_t kPageFile = kStoredHeaderBytes + kPageSize * kRowBytes;

CacheSpec plain_spec() {
  return {.name = "plain", .num_layers = 1, .row_bytes = kRowBytes};
}
CacheSpec recurrent_spec() {
  CacheSpec spec = plain_spec();
  spec.state_bytes = spec.snapshot_bytes = 64;
  return spec;
}

std::shared_ptr<PageStore> open_store(const fs::path& folder, std::uint64_t max_bytes = 1 << 20,
                                      const std::string& identity = "a model") {
  auto store = PageStore::open({.folder = folder, .max_bytes = max_bytes, .identity = identity});
  EXPECT_TRUE(store.has_value()) << store.error().message;
  return *store;
}

// A cache with a store, which it gives back with everything else.
struct Rig {
  Rig(const fs::path& folder, std::size_t num_pages, CacheSpec spec = plain_spec(),
      std::uint64_t max_bytes = 1 << 20, const std::string& identity = "a model")
      : cache(std::move(spec), num_pages, true, {4, 4}) {
    cache.attach(open_store(folder, max_bytes, identity));
  }
  ~Rig() { cache.check_integrity(); }

  std::uint64_t* row(PageId page, int i) {
    return reinterpret_cast<std::uint64_t*>(cache.rows(page, 0)) + i;
  }
  // Rows that tell the token and what came before it; a snapshot at each of `snapshots`.
  void run(const Tokens& tokens, std::uint64_t salt = 0, const std::vector<int>& snapshots = {}) {
    SequenceCache sequence = cache.start(tokens, salt);
    const int start = sequence.length();
    const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(start));
    ASSERT_TRUE(sequence.reserve(static_cast<int>(rest.size())).has_value());
    for (int i = start; i < static_cast<int>(tokens.size()); ++i)
      *row(sequence.pages()[static_cast<std::size_t>(i / kPageSize)], i % kPageSize) =
          value(tokens, i);
    for (const int length : snapshots) {
      if (std::byte* out = sequence.reserve_snapshot(length)) std::memset(out, length % 251, 64);
    }
    sequence.commit(rest);
  }
  static std::uint64_t value(const Tokens& tokens, int i) {
    std::uint64_t h = 5;
    for (int at = 0; at <= i; ++at)
      h = (h ^ static_cast<std::uint64_t>(tokens[static_cast<std::size_t>(at)])) * 0x100000001b3u;
    return h;
  }
  // How many tokens memory and store have of a prompt; their rows must be right.
  int recalled(const Tokens& tokens, std::uint64_t salt = 0) {
    const auto recall = Recall::begin(cache, tokens, salt);
    while (recall != nullptr && !recall->is_done()) cache.store()->wait_progress(0.01);
    cache.check_integrity();
    const SequenceCache sequence = cache.start(tokens, salt);
    for (int i = 0; i < sequence.length(); ++i)
      EXPECT_EQ(*row(sequence.pages()[static_cast<std::size_t>(i / kPageSize)], i % kPageSize),
                value(tokens, i));
    if (sequence.snapshot() != nullptr) {
      EXPECT_EQ(static_cast<int>(sequence.snapshot()[63]), sequence.length() % 251);
    }
    return sequence.length();
  }
  StoreReport save() {
    SaveJob job(cache);
    while (!job.advance()) cache.store()->wait_progress(0.01);
    return job.report();
  }
  StoreReport restore() {
    RestoreJob job(cache);
    while (!job.advance()) cache.store()->wait_progress(0.01);
    return job.report();
  }
  StoreStats stats() { return *cache.stats().store; }

  Cache cache;
};

std::vector<fs::path> files_of(const fs::path& folder, std::string_view suffix) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().string().ends_with(suffix)) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

void flip(const fs::path& path, std::size_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char c = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(c ^ 0x10));
}

TEST(PageFile, header_comes_back_and_any_changed_byte_is_noticed) {
  StoredEntry entry{.kind = StoredKind::kSnapshot, .key = {1, 2}, .parent = {3, 4}, .salt = 5};
  entry.nbytes = 100;
  std::ranges::copy(iota_tokens(kPageSize, 7), entry.tokens.begin());
  const StoredHeader header = write_header(entry, 6, 9);
  const auto parsed = parse_header(header, kStoredHeaderBytes + 100);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->entry.kind, StoredKind::kSnapshot);
  EXPECT_EQ(parsed->entry.key, entry.key);
  EXPECT_EQ(parsed->entry.parent, entry.parent);
  EXPECT_EQ(parsed->entry.salt, 5u);
  EXPECT_EQ(parsed->entry.nbytes, 100u);
  EXPECT_EQ(parsed->entry.tokens, entry.tokens);
  EXPECT_EQ(parsed->fingerprint, 6u);
  EXPECT_EQ(parsed->checksum, 9u);
  for (std::size_t at = 0; at < header.size(); ++at) {
    StoredHeader changed = header;
    changed[at] ^= std::byte{1};
    EXPECT_FALSE(parse_header(changed, kStoredHeaderBytes + 100).has_value()) << at;
  }
  for (const std::size_t size : {std::size_t{0}, kStoredHeaderBytes - 1}) {
    EXPECT_FALSE(parse_header(std::span(header).first(size), size).has_value());
  }
  EXPECT_FALSE(parse_header(header, kStoredHeaderBytes + 99).has_value());
}

TEST(PageStore, keeps_what_made_room_and_finds_it_again_after_a_restart) {
  const TempFolder folder;
  const Tokens first = iota_tokens(4 * kPageSize + 1), second = iota_tokens(4 * kPageSize, 1000);
  {
    Rig rig(folder.path(), 5);
    rig.run(first);
    rig.run(second);  // takes the place of all but one page of the first
    EXPECT_TRUE(rig.cache.store()->wait_idle(10));
    EXPECT_EQ(rig.recalled(first), 4 * kPageSize);
    EXPECT_TRUE(rig.cache.store()->wait_idle(10));
    rig.save();
  }
  struct stat info{};
  for (const fs::path& file : files_of(folder.path(), ".page")) {
    ASSERT_EQ(::stat(file.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  Rig rig(folder.path(), 9);
  EXPECT_EQ(rig.cache.match(first).pages, 0);
  EXPECT_EQ(rig.recalled(first), 4 * kPageSize);
  EXPECT_EQ(rig.recalled(iota_tokens(3 * kPageSize, 1000)), 2 * kPageSize);
  EXPECT_EQ(rig.stats().damaged, 0u);
}

TEST(PageStore, keeps_tenants_and_models_apart) {
  const TempFolder folder;
  const Tokens tokens = iota_tokens(3 * kPageSize);
  {
    Rig rig(folder.path(), 8);
    rig.run(tokens, 1);
    EXPECT_EQ(rig.save().pages, 3u);
  }
  {
    Rig rig(folder.path(), 8);
    EXPECT_EQ(rig.recalled(tokens, 2), 0);
    EXPECT_EQ(rig.recalled(tokens, 1), 2 * kPageSize);
  }
  Rig rig(folder.path(), 8, plain_spec(), 1 << 20, "another model");
  EXPECT_EQ(rig.recalled(tokens, 1), 0);
  EXPECT_EQ(rig.stats().entries, 3u) << "counted, since they take room";
  EXPECT_EQ(rig.cache.store()->clear().entries, 0u);
}

TEST(PageStore, damaged_files_are_left_out_and_removed) {
  const Tokens tokens = iota_tokens(4 * kPageSize);
  // Each kind of damage, done to every file, and what may still be found.
  const std::vector<std::function<void(const fs::path&)>> damages = {
      [](const fs::path& file) { flip(file, 0); },
      [](const fs::path& file) { flip(file, 30); },
      [](const fs::path& file) { flip(file, 100); },
      [](const fs::path& file) { flip(file, kStoredHeaderBytes + 13); },
      [](const fs::path& file) { fs::resize_file(file, 0); },
      [](const fs::path& file) { fs::resize_file(file, 100); },
      [](const fs::path& file) { fs::resize_file(file, kPageFile - 1); },
      [](const fs::path& file) { fs::resize_file(file, kPageFile + 1); },
  };
  for (const auto& damage : damages) {
    const TempFolder folder;
    {
      Rig rig(folder.path(), 8);
      rig.run(tokens);
      rig.save();
    }
    for (const fs::path& file : files_of(folder.path(), ".page")) damage(file);
    Rig rig(folder.path(), 8);
    EXPECT_EQ(rig.recalled(tokens), 0);
    EXPECT_EQ(rig.stats().damaged, 1u);
    EXPECT_EQ(files_of(folder.path(), ".page").size(), 3u);
    EXPECT_EQ(rig.restore().pages, 0u);
    EXPECT_EQ(rig.stats().damaged, 4u);
    rig.run(tokens);
    EXPECT_EQ(rig.save().pages, 4u);
  }
  // A file in the place of another, and one that is not there any more.
  const TempFolder folder;
  {
    Rig rig(folder.path(), 8);
    rig.run(tokens);
    rig.save();
  }
  const std::vector<fs::path> files = files_of(folder.path(), ".page");
  fs::copy_file(files[0], files[1], fs::copy_options::overwrite_existing);
  Rig rig(folder.path(), 8);
  fs::remove(files[2]);
  EXPECT_LT(rig.recalled(tokens), 3 * kPageSize);
  rig.restore();
  EXPECT_EQ(rig.stats().damaged, 2u);
}

TEST(PageStore, half_written_files_of_an_earlier_process_go_and_foreign_ones_stay) {
  const TempFolder folder;
  folder.write("0123.page.part", "half");
  folder.write("notes.txt", "mine");
  folder.write("zzzz.page", "no name of ours");
  Rig rig(folder.path(), 8);
  EXPECT_FALSE(fs::exists(folder.path() / "0123.page.part"));
  EXPECT_TRUE(fs::exists(folder.path() / "notes.txt"));
  EXPECT_TRUE(fs::exists(folder.path() / "zzzz.page"));
  EXPECT_EQ(rig.stats().entries, 0u);
}

TEST(PageStore, never_exceeds_its_size_and_drops_what_was_used_least_recently) {
  const TempFolder folder;
  Rig rig(folder.path(), 16, plain_spec(), 4 * kPageFile);
  const Tokens first = iota_tokens(2 * kPageSize + 1), second = iota_tokens(2 * kPageSize + 1, 500),
               third = iota_tokens(kPageSize + 1, 900);
  rig.run(first);
  rig.save();
  rig.run(second);
  rig.save();
  EXPECT_EQ(rig.stats().bytes, 4 * kPageFile);
  rig.cache.clear_prefixes();
  EXPECT_EQ(rig.recalled(first), 2 * kPageSize);  // a use
  rig.run(third);
  rig.save();
  EXPECT_EQ(rig.stats().bytes, 4 * kPageFile);
  EXPECT_EQ(rig.stats().evicted, 1u);
  rig.cache.clear_prefixes();
  EXPECT_EQ(rig.recalled(second), kPageSize) << "its end left first";
  EXPECT_EQ(rig.recalled(first), 2 * kPageSize);
  EXPECT_EQ(rig.recalled(third), kPageSize);
}

TEST(PageStore, belongs_to_one_process) {
  const TempFolder folder;
  const auto store = open_store(folder.path());
  const auto again = PageStore::open({.folder = folder.path(), .max_bytes = 1, .identity = "b"});
  ASSERT_FALSE(again.has_value());
  EXPECT_NE(again.error().message.find("another process"), std::string::npos);
}

TEST(PageStore, refuses_what_is_no_folder) {
  const TempFolder folder;
  const fs::path file = folder.write("file", "x");
  for (const fs::path& path : {file, file / "below", fs::path()}) {
    const auto store = PageStore::open({.folder = path, .max_bytes = 1, .identity = ""});
    ASSERT_FALSE(store.has_value());
    EXPECT_EQ(store.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(PageStore, hybrids_are_taken_up_at_a_snapshot) {
  const TempFolder folder;
  const Tokens tokens = iota_tokens(5 * kPageSize + 3);
  {
    Rig rig(folder.path(), 8, recurrent_spec());
    rig.run(tokens, 0, {2 * kPageSize, 4 * kPageSize});
    const StoreReport saved = rig.save();
    EXPECT_EQ(saved.pages, 5u);
    EXPECT_EQ(saved.snapshots, 2u);
  }
  {
    Rig rig(folder.path(), 8, recurrent_spec());
    EXPECT_EQ(rig.recalled(tokens), 4 * kPageSize);
    EXPECT_EQ(rig.recalled(iota_tokens(3 * kPageSize)), 2 * kPageSize);
  }
  {
    Rig rig(folder.path(), 8, recurrent_spec());
    const StoreReport restored = rig.restore();
    EXPECT_EQ(restored.pages, 5u);
    EXPECT_EQ(restored.snapshots, 2u);
    EXPECT_EQ(rig.cache.match(tokens).pages, 4);
  }
  for (const fs::path& file : files_of(folder.path(), ".state")) flip(file, 400);
  Rig rig(folder.path(), 8, recurrent_spec());
  EXPECT_EQ(rig.recalled(tokens), 0);
}

TEST(PageStore, restores_what_was_used_last_into_free_pages_alone) {
  const TempFolder folder;
  const Tokens old = iota_tokens(4 * kPageSize), fresh = iota_tokens(4 * kPageSize, 1000);
  {
    Rig rig(folder.path(), 16);
    rig.run(old);
    rig.run(fresh);
    rig.save();
  }
  Rig rig(folder.path(), 16);
  rig.cache.limit_cached(6);
  rig.run(iota_tokens(kPageSize, 5000));
  EXPECT_EQ(rig.restore().pages, 5u);
  EXPECT_EQ(rig.cache.stats().cached_pages, 6u);
  EXPECT_EQ(rig.cache.stats().evicted_pages, 0u);
  EXPECT_EQ(rig.cache.match(fresh).known, 3) << "all but the last token's page";
  EXPECT_EQ(rig.cache.match(old).known, 1);
  EXPECT_EQ(rig.restore().present, 5u);
}

TEST(PrefixLimit, conversations_leave_as_a_whole_the_oldest_first_and_uses_refresh_ancestors) {
  Cache cache(plain_spec(), 32, true);
  cache.limit_cached(8);
  const auto run = [&cache](const Tokens& tokens) {
    SequenceCache sequence = cache.start(tokens);
    const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(sequence.length()));
    ASSERT_TRUE(sequence.reserve(static_cast<int>(rest.size())).has_value());
    sequence.commit(rest);
  };
  const auto known = [&cache](const Tokens& tokens) { return cache.match(tokens).known; };
  const Tokens a = iota_tokens(3 * kPageSize + 1), b = iota_tokens(3 * kPageSize + 1, 1000),
               c = iota_tokens(4 * kPageSize + 1, 2000);
  run(a);
  run(b);
  {
    const SequenceCache use = cache.start(a);
  }  // now b is the oldest
  run(c);
  EXPECT_EQ(known(a), 3);
  EXPECT_EQ(known(b), 1) << "from its end";
  EXPECT_EQ(known(c), 4);
  EXPECT_EQ(cache.stats().cached_pages, 8u);
  EXPECT_EQ(cache.stats().evicted_pages, 2u);
  // A page that is leased never leaves, nor one with leased descendants.
  const SequenceCache held = cache.start(a);
  cache.limit_cached(0);
  EXPECT_EQ(known(a), 3);
  EXPECT_EQ(known(b) + known(c), 0);
  EXPECT_EQ(cache.stats().cached_pages, 0u);
  cache.check_integrity();
}

}  // namespace
}  // namespace glint
