#include "cache/page_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{8} << 20;  // of one read or write
constexpr std::string_view kPageSuffix = ".page", kSnapshotSuffix = ".state", kPartSuffix = ".part";
constexpr const char* kSecretName = "secret";
constexpr const char* kLockName = "lock";

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() { close_now(); }
  int get() const { return fd_; }
  bool close_now() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_;
};

Error os_error(std::string_view action, const fs::path& path) {
  return io_error(fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(errno)));
}

// All of it, or false with errno (0 at the end of the file).
bool read_all(int fd, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t n = ::read(fd, to.data(), std::min(to.size(), kPieceBytes));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = 0;
    if (n <= 0) return false;
    to = to.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), std::min(bytes.size(), kPieceBytes));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = ENOSPC;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

timespec timespec_of(std::int64_t ns) {
  return {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
}

// What a file is called.
struct Id {
  std::uint64_t fingerprint = 0;
  StoreKey key;
  StoredKind kind = StoredKind::kPage;
  auto operator<=>(const Id&) const = default;

  std::string name() const {
    return fmt::format("{:016x}-{:016x}{:016x}{}", fingerprint, key.first, key.second,
                       kind == StoredKind::kPage ? kPageSuffix : kSnapshotSuffix);
  }
};

std::optional<std::uint64_t> hex_number(std::string_view text) {
  std::uint64_t value = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    if (!digit && !letter) return std::nullopt;
    value = value << 4 | static_cast<std::uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

// The inverse of Id::name().
std::optional<Id> id_of(std::string_view name) {
  Id id;
  if (name.ends_with(kSnapshotSuffix)) {
    id.kind = StoredKind::kSnapshot;
    name.remove_suffix(kSnapshotSuffix.size());
  } else if (name.ends_with(kPageSuffix)) {
    name.remove_suffix(kPageSuffix.size());
  } else {
    return std::nullopt;
  }
  if (name.size() != 16 + 1 + 32 || name[16] != '-') return std::nullopt;
  const auto fingerprint = hex_number(name.substr(0, 16)), first = hex_number(name.substr(17, 16)),
             second = hex_number(name.substr(33));
  if (!fingerprint || !first || !second) return std::nullopt;
  id.fingerprint = *fingerprint;
  id.key = {*first, *second};
  return id;
}

// The files there are, by name and by age.
class Index {
 public:
  struct Entry {
    std::uint64_t nbytes = 0;
    std::int64_t stamp = 0;
  };
  const Entry* find(const Id& id) const {
    const auto it = entries_.find(id);
    return it == entries_.end() ? nullptr : &it->second;
  }
  void add(const Id& id, Entry entry) {
    erase(id);
    entries_.emplace(id, entry);
    by_age_.emplace(entry.stamp, id);
    nbytes_ += entry.nbytes;
  }
  void erase(const Id& id) {
    const auto it = entries_.find(id);
    if (it == entries_.end()) return;
    nbytes_ -= it->second.nbytes;
    by_age_.erase({it->second.stamp, id});
    entries_.erase(it);
  }
  const std::set<std::pair<std::int64_t, Id>>& by_age() const { return by_age_; }
  std::size_t size() const { return entries_.size(); }
  std::uint64_t nbytes() const { return nbytes_; }

 private:
  std::map<Id, Entry> entries_;
  std::set<std::pair<std::int64_t, Id>> by_age_;
  std::uint64_t nbytes_ = 0;
};

Result<Descriptor> lock_folder(const fs::path& folder) {
  const fs::path path = folder / kLockName;
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) return os_error("open", path);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) return os_error("lock", path);
  return exhausted(
      fmt::format("another process keeps its pages in {}: give each its own folder, or end that "
                  "process first",
                  folder.string()));
}

using Secret = std::array<std::byte, StoreHasher::kSecretBytes>;

// The folder's own; a new one where there is none, or a damaged one. Then no old file is found, and
// all of them make room in time.
Result<Secret> read_secret(const fs::path& folder) {
  const fs::path path = folder / kSecretName;
  Secret secret;
  {
    const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (fd.get() >= 0 && read_all(fd.get(), secret)) return secret;
  }
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    return os_error("get random numbers for", path);
  fs::path part = path;
  part += kPartSuffix;
  Descriptor fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0 || !write_all(fd.get(), secret) || !fd.close_now() ||
      ::rename(part.c_str(), path.c_str()) != 0)
    return os_error("write", path);
  return secret;
}

}  // namespace

struct PageStore::State {
  State(StoreOptions given, Descriptor l, const Secret& secret)
      : options(std::move(given)),
        lock(std::move(l)),
        hasher(secret),
        fingerprint(hasher.fingerprint(std::as_bytes(std::span(options.identity)))) {}

  struct Job {
    Id id;
    std::int64_t stamp = 0;
    StoredEntry entry;
    std::unique_ptr<std::byte[]> memory;
    std::span<const std::byte> content() const { return {memory.get(), entry.nbytes}; }
    std::uint64_t file_bytes() const { return kStoredHeaderBytes + entry.nbytes; }
  };

  fs::path path_of(const Id& id) const { return options.folder / id.name(); }
  Id id_for(const StoreKey& key, StoredKind kind) const { return {fingerprint, key, kind}; }
  Status scan();
  void run();
  void write(const Job& job);
  bool make_room(const Job& job);
  Status write_file(const Job& job, const fs::path& path) const;
  void read(StoreRead& batch);
  Status read_item(StoreRead::Item& item) const;
  void erase_file(Id id);
  std::int64_t stamp_of(std::int64_t wanted);

  const StoreOptions options;
  const Descriptor lock;
  const StoreHasher hasher;
  const std::uint64_t fingerprint;

  mutable std::mutex mutex;  // guards what follows; never held while a file's content moves
  std::condition_variable wake;
  mutable std::condition_variable progress;
  Index index;
  std::deque<Job> writes;
  std::set<Id> queued;  // those, and the one at work
  std::uint64_t queued_bytes = 0;
  std::optional<Id> writing;
  bool spoils_writing = false;  // it was removed meanwhile
  std::deque<std::shared_ptr<StoreRead>> reads;
  bool reading = false;
  bool stopping = false;
  bool complained = false;  // of a write that failed; once is enough
  std::int64_t last_stamp = 0;
  StoreStats counters;

  std::thread thread;
};

// What an earlier process left. Half-written files go; foreign ones stay and are not looked at.
Status PageStore::State::scan() {
  std::error_code error;
  fs::directory_iterator it(options.folder, error);
  if (error) return io_error(fmt::format("cannot list {}", options.folder.string()));
  for (; it != fs::directory_iterator(); it.increment(error)) {
    if (error) return io_error(fmt::format("cannot list {}", options.folder.string()));
    const std::string name = it->path().filename().string();
    if (name.ends_with(kPartSuffix)) {
      ::unlink(it->path().c_str());
      continue;
    }
    const std::optional<Id> id = id_of(name);
    struct stat info{};
    if (!id || ::lstat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    const std::int64_t stamp =
        static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
    index.add(*id, {static_cast<std::uint64_t>(info.st_size), std::min(stamp, now_ns())});
  }
  while (index.nbytes() > options.max_bytes) erase_file(index.by_age().begin()->second);
  return {};
}

Result<std::shared_ptr<PageStore>> PageStore::open(StoreOptions options) {
  if (options.folder.empty()) return invalid_argument("no folder for cache pages was given");
  std::error_code error;
  const bool exists = fs::exists(options.folder, error);
  fs::create_directories(options.folder, error);
  if (error || !fs::is_directory(options.folder, error)) {
    return invalid_argument(
        fmt::format("{} is no folder, and none can be made there", options.folder.string()));
  }
  if (!exists) fs::permissions(options.folder, fs::perms::owner_all, error);
  GLINT_TRY(Descriptor lock, lock_folder(options.folder));
  GLINT_TRY(const Secret secret, read_secret(options.folder));
  auto state = std::make_unique<State>(std::move(options), std::move(lock), secret);
  GLINT_TRY_VOID(state->scan());
  state->thread = std::thread([running = state.get()] { running->run(); });
  return std::shared_ptr<PageStore>(new PageStore(std::move(state)));
}

PageStore::PageStore(std::unique_ptr<State> state) : state_(std::move(state)) {}

PageStore::~PageStore() {
  {
    const std::lock_guard guard(state_->mutex);
    state_->stopping = true;
    for (const auto& batch : state_->reads) batch->cancel();
  }
  state_->wake.notify_one();
  state_->thread.join();
}

// Reads come first: somebody waits for them.
void PageStore::State::run() {
  std::unique_lock guard(mutex);
  while (true) {
    wake.wait(guard, [this] { return stopping || !reads.empty() || !writes.empty(); });
    if (!reads.empty()) {
      const std::shared_ptr<StoreRead> batch = std::move(reads.front());
      reads.pop_front();
      reading = true;
      guard.unlock();
      read(*batch);
      guard.lock();
      reading = false;
      batch->done_.store(true, std::memory_order_release);
    } else if (stopping) {
      return;
    } else {
      const Job job = std::move(writes.front());
      writes.pop_front();
      writing = job.id;
      spoils_writing = false;
      guard.unlock();
      write(job);
      guard.lock();
      writing.reset();
      queued.erase(job.id);
      queued_bytes -= job.entry.nbytes;
    }
    progress.notify_all();
  }
}

std::int64_t PageStore::State::stamp_of(std::int64_t wanted) {
  if (wanted != kStampNow) return wanted;
  last_stamp = std::max(last_stamp + 1, now_ns());
  return last_stamp;
}

// With the mutex held.
void PageStore::State::erase_file(Id id) {
  index.erase(id);
  ::unlink(path_of(id).c_str());
}

bool PageStore::State::make_room(const Job& job) {
  const std::lock_guard guard(mutex);
  if (job.file_bytes() > options.max_bytes) return false;
  while (index.nbytes() > options.max_bytes - job.file_bytes()) {
    const auto& [stamp, id] = *index.by_age().begin();
    if (stamp >= job.stamp) return false;
    erase_file(id);
    ++counters.evicted;
  }
  return true;
}

Status PageStore::State::write_file(const Job& job, const fs::path& path) const {
  fs::path part = path;
  part += kPartSuffix;
  Descriptor fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) return os_error("create", part);
  const timespec times[2] = {timespec_of(job.stamp), timespec_of(job.stamp)};
  const StoredHeader header = write_header(job.entry, fingerprint, content_checksum(job.content()));
  if (write_all(fd.get(), header) && write_all(fd.get(), job.content()) &&
      ::futimens(fd.get(), times) == 0 && fd.close_now() &&
      ::rename(part.c_str(), path.c_str()) == 0)
    return {};
  const Error error = os_error("write", path);
  ::unlink(part.c_str());
  return error;
}

void PageStore::State::write(const Job& job) {
  const bool fits = make_room(job);
  const Status written = fits ? write_file(job, path_of(job.id)) : Status{};
  const std::lock_guard guard(mutex);
  if (fits && written && !spoils_writing) {
    index.add(job.id, {job.file_bytes(), job.stamp});
    ++counters.written;
    return;
  }
  ++counters.dropped;
  if (fits && written) ::unlink(path_of(job.id).c_str());
  if (!written && !std::exchange(complained, true)) {
    log_warn(fmt::format("cache pages are not kept on disk: {} (this is said once)",
                         written.error().message));
  }
}

Status PageStore::State::read_item(StoreRead::Item& item) const {
  const fs::path path = path_of(id_for(item.key, item.kind));
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info{};
  if (fd.get() < 0 || ::fstat(fd.get(), &info) != 0) return os_error("open", path);
  if (!S_ISREG(info.st_mode)) return corrupt("it is no regular file");
  StoredHeader bytes;
  if (!read_all(fd.get(), bytes)) return corrupt("it is shorter than its header");
  GLINT_TRY(const ParsedHeader header,
            parse_header(bytes, static_cast<std::uint64_t>(info.st_size)));
  const StoredEntry& entry = header.entry;
  if (header.fingerprint != fingerprint || entry.key != item.key || entry.kind != item.kind ||
      entry.key != hasher.key_after(entry.parent, entry.tokens))
    return corrupt("it is not what its name says");
  if (item.expected && (entry.tokens != item.expected->tokens ||
                        entry.parent != item.expected->parent || entry.salt != item.expected->salt))
    return corrupt("it holds other tokens than its name says");
  if (entry.nbytes != item.to.size()) return corrupt("it has the wrong size");
  if (!read_all(fd.get(), item.to)) return corrupt("it cannot be read to its end");
  if (content_checksum(item.to) != header.checksum)
    return corrupt("the checksum of its content is wrong");
  item.found = entry;
  return {};
}

void PageStore::State::read(StoreRead& batch) {
  // A page must not leave the folder before what needs it, so parents count as used later.
  std::int64_t stamp = 0;
  {
    const std::lock_guard guard(mutex);
    stamp = stamp_of(kStampNow);
  }
  for (StoreRead::Item& item : batch.items_) {
    if (batch.cancelled_) return;
    const Status status = read_item(item);
    item.is_fine = status.has_value();
    const Id id = id_for(item.key, item.kind);
    const std::lock_guard guard(mutex);
    if (status) {
      ++counters.read;
      if (const Index::Entry* entry = index.find(id); entry != nullptr)
        index.add(id, {entry->nbytes, stamp});
      const timespec times[2] = {timespec_of(stamp), timespec_of(stamp)};
      ::utimensat(AT_FDCWD, path_of(id).c_str(), times, AT_SYMLINK_NOFOLLOW);
      --stamp;
      continue;
    }
    if (index.find(id) != nullptr) {
      ++counters.damaged;
      log_warn(fmt::format("{} is left out and removed: {}", path_of(id).string(),
                           status.error().message));
      erase_file(id);
    }
    if (batch.stops_at_failure_) return;
  }
}

StoreKey PageStore::root(std::uint64_t salt) const {
  return state_->hasher.root(state_->fingerprint, salt);
}

StoreKey PageStore::key_after(const StoreKey& parent, std::span<const std::int32_t> tokens) const {
  return state_->hasher.key_after(parent, tokens);
}

bool PageStore::has(const StoreKey& key, StoredKind kind) const {
  const std::lock_guard guard(state_->mutex);
  return state_->index.find(state_->id_for(key, kind)) != nullptr;
}

bool PageStore::knows(const StoreKey& key, StoredKind kind) const {
  const Id id = state_->id_for(key, kind);
  const std::lock_guard guard(state_->mutex);
  return state_->queued.contains(id) || state_->index.find(id) != nullptr;
}

std::vector<StoreKey> PageStore::newest(StoredKind kind, std::size_t most) const {
  const std::lock_guard guard(state_->mutex);
  std::vector<StoreKey> keys;
  const auto& by_age = state_->index.by_age();
  for (auto it = by_age.rbegin(); it != by_age.rend() && keys.size() < most; ++it) {
    if (it->second.fingerprint == state_->fingerprint && it->second.kind == kind)
      keys.push_back(it->second.key);
  }
  return keys;
}

bool PageStore::has_queue_room(std::uint64_t nbytes) const {
  const std::lock_guard guard(state_->mutex);
  return state_->queued_bytes == 0 || state_->queued_bytes + nbytes <= state_->options.queue_bytes;
}

bool PageStore::write(const StoredEntry& entry, std::span<const std::byte> content,
                      std::int64_t stamp) {
  GLINT_CHECK(entry.nbytes == content.size());
  State& state = *state_;
  if (!has_queue_room(content.size())) {
    const std::lock_guard guard(state.mutex);
    ++state.counters.dropped;
    return false;
  }
  State::Job job;
  job.id = state.id_for(entry.key, entry.kind);
  job.entry = entry;
  job.memory = std::make_unique_for_overwrite<std::byte[]>(content.size());
  std::memcpy(job.memory.get(), content.data(), content.size());
  {
    const std::lock_guard guard(state.mutex);
    if (!state.queued.insert(job.id).second) return true;
    job.stamp = state.stamp_of(stamp);
    state.queued_bytes += job.entry.nbytes;
    state.writes.push_back(std::move(job));
  }
  state.wake.notify_one();
  return true;
}

void PageStore::touch(const StoreKey& key, StoredKind kind, std::int64_t stamp) {
  State& state = *state_;
  const Id id = state.id_for(key, kind);
  const std::lock_guard guard(state.mutex);
  const Index::Entry* entry = state.index.find(id);
  if (entry == nullptr) return;
  const std::int64_t at = std::max(entry->stamp, state.stamp_of(stamp));
  state.index.add(id, {entry->nbytes, at});
  const timespec times[2] = {timespec_of(at), timespec_of(at)};
  ::utimensat(AT_FDCWD, state.path_of(id).c_str(), times, AT_SYMLINK_NOFOLLOW);
}

std::shared_ptr<StoreRead> PageStore::read(std::vector<StoreRead::Item> items,
                                           bool stops_at_failure) {
  auto batch = std::make_shared<StoreRead>(std::move(items), stops_at_failure);
  {
    const std::lock_guard guard(state_->mutex);
    state_->reads.push_back(batch);
  }
  state_->wake.notify_one();
  return batch;
}

void PageStore::remove(const StoreKey& key) {
  State& state = *state_;
  const std::lock_guard guard(state.mutex);
  for (const StoredKind kind : {StoredKind::kPage, StoredKind::kSnapshot}) {
    const Id id = state.id_for(key, kind);
    if (state.index.find(id) != nullptr) state.erase_file(id);
    if (state.writing == id) state.spoils_writing = true;
    const auto waiting = std::ranges::find(state.writes, id, &State::Job::id);
    if (waiting == state.writes.end()) continue;
    state.queued_bytes -= waiting->entry.nbytes;
    state.writes.erase(waiting);
    state.queued.erase(id);
  }
}

PageStore::Cleared PageStore::clear() {
  State& state = *state_;
  const std::lock_guard guard(state.mutex);
  for (const State::Job& job : state.writes) {
    state.queued_bytes -= job.entry.nbytes;
    state.queued.erase(job.id);
  }
  state.writes.clear();
  state.spoils_writing = true;
  std::vector<Id> ids;
  for (const auto& [stamp, id] : state.index.by_age()) {
    if (id.fingerprint == state.fingerprint) ids.push_back(id);
  }
  Cleared cleared;
  for (const Id& id : ids) {
    ++cleared.entries;
    cleared.bytes += state.index.find(id)->nbytes;
    state.erase_file(id);
  }
  return cleared;
}

bool PageStore::wait_idle(double seconds) const {
  std::unique_lock guard(state_->mutex);
  return state_->progress.wait_for(guard, std::chrono::duration<double>(seconds), [this] {
    return state_->queued.empty() && state_->reads.empty() && !state_->reading;
  });
}

void PageStore::wait_progress(double seconds) const {
  std::unique_lock guard(state_->mutex);
  if (state_->queued.empty() && state_->reads.empty() && !state_->reading) return;
  state_->progress.wait_for(guard, std::chrono::duration<double>(seconds));
}

StoreStats PageStore::stats() const {
  const std::lock_guard guard(state_->mutex);
  StoreStats stats = state_->counters;
  stats.entries = state_->index.size();
  stats.bytes = state_->index.nbytes();
  stats.max_bytes = state_->options.max_bytes;
  return stats;
}

}  // namespace glint
