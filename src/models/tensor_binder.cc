#include "models/tensor_binder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ranges>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/numa.h"
#include "checkpoint/gguf.h"
#include "models/expert_store.h"

namespace glint {
namespace {

constexpr std::size_t kMaxListed = 12;

// Weights lie one after another in chunks of address space; what is never written costs nothing.
constexpr std::size_t kArenaBytes = std::size_t{256} << 20;
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;  // of destination, for one task

// Raise it whenever a job would write other bytes than before: packed weights that were kept on
// disk are then made anew.
constexpr std::uint64_t kPackedVersion = 2;
}  // namespace

TensorBinder::TensorBinder(const Checkpoint& checkpoint) : TensorBinder(checkpoint, {}) {
  checks_only_ = true;
}

TensorBinder::TensorBinder(const Checkpoint& checkpoint, const LoadOptions& options)
    : checkpoint_(checkpoint), options_(options) {
  auto config = read_quant_config(checkpoint);
  if (config) {
    quantisation_ = std::move(*config);
  } else {
    problem(config.error().message, config.error().code == ErrorCode::kUnsupported);
  }
}

TensorBinder::~TensorBinder() = default;

void TensorBinder::problem(std::string text, bool is_unsupported) {
  ++num_problems_;
  unsupported_ = unsupported_ || is_unsupported;
  if (problems_.size() < kMaxListed) problems_.push_back(std::move(text));
}

TensorBinder::Source TensorBinder::take(const std::string& name,
                                        std::initializer_list<std::int64_t> shape,
                                        bool ones_matter) {
  used_.insert(name);
  auto found = find_matrix(checkpoint_, quantisation_, name);
  if (!found) {
    problem(found.error().message, found.error().code == ErrorCode::kUnsupported);
    // One complaint for all the tensors of a matrix.
    const std::string stem = name.substr(0, name.rfind('.') + 1);
    const auto& all = checkpoint_.tensors();
    for (auto at = all.lower_bound(stem); at != all.end() && at->first.starts_with(stem); ++at) {
      if (place_of(at->first).matrix == name) used_.insert(at->first);
    }
    return nullptr;
  }
  const StoredMatrix& matrix = **found;
  for (const TensorRef* tensor : matrix.tensors()) used_.insert(tensor->name);
  const TensorRef& codes = *matrix.tensors()[0];
  const std::string file = codes.file == nullptr ? "?" : codes.file->path().filename().string();
  std::int64_t rows = 1;
  for (auto dim = shape.begin(); dim + 1 < shape.end(); ++dim) rows *= *dim;
  const std::vector<std::int64_t> stored =
      matrix.kind() == StoredMatrix::Kind::kPlain
          ? codes.shape
          : std::vector<std::int64_t>{static_cast<std::int64_t>(matrix.rows()),
                                      static_cast<std::int64_t>(matrix.cols())};
  const auto same_shape = [&] {
    if (ones_matter) return std::ranges::equal(shape, stored);
    const auto counts = std::views::filter([](std::int64_t dim) { return dim != 1; });
    return std::ranges::equal(shape | counts, stored | counts);
  };
  const bool fits = matrix.kind() == StoredMatrix::Kind::kPlain
                        ? same_shape()
                        : stored[0] == rows && stored[1] == *(shape.end() - 1);
  if (!fits) {
    problem(fmt::format("tensor {} in {} has shape [{}] where config.json asks for [{}]",
                        codes.name, file, fmt::join(stored, ", "), fmt::join(shape, ", ")),
            false);
    return nullptr;
  }
  if (const Status values = matrix.check_values(); !values) {
    problem(values.error().message, values.error().code == ErrorCode::kUnsupported);
    return nullptr;
  }
  if (matrix.kind() != StoredMatrix::Kind::kPlain) schemes_.insert(matrix.scheme());
  return *found;
}

std::byte* TensorBinder::allocate(WeightJob job, std::shared_ptr<const void>& owner) {
  const std::size_t rounded = (job.nbytes() + 63) / 64 * 64;
  if (chunks_.empty() || chunks_.back().buffer->size() - chunks_.back().used < rounded) {
    AlignedBuffer buffer(std::max(rounded, kArenaBytes));
    if (options_.interleave) {
      const Status spread = interleave_memory(buffer.data(), buffer.size());
      if (!spread) log_warn(spread.error().message);
    }
    chunks_.push_back({std::make_shared<AlignedBuffer>(std::move(buffer)), 0});
  }
  PackedChunk& chunk = chunks_.back();
  owner = chunk.buffer;
  job.chunk = chunks_.size() - 1;
  job.chunk_offset = chunk.used;
  job.to = chunk.buffer->data() + chunk.used;
  chunk.used += rounded;
  jobs_.push_back(job);
  return job.to;
}

Weight TensorBinder::place(const Source& source, std::size_t first, std::size_t rows, MatrixUse use,
                           bool expand) {
  if (checks_only_)
    return Weight::borrow(QuantFormat::kF32, rows, source->cols(), nullptr, nullptr);
  const WeightJob job = weight_job(source, first, rows, use, expand, options_);
  std::shared_ptr<const void> owner;
  const std::byte* data = nullptr;
  const std::span<const std::byte> stored = source->row_bytes(first, rows);
  // Files promise no alignment; kernels need an element's.
  const std::size_t element = is_block_type(job.type) ? 1 : dtype_bytes(job.type);
  if (job.work == WeightJob::Work::kCopy && stays_in_file(job.format, options_) &&
      reinterpret_cast<std::uintptr_t>(stored.data()) % element == 0) {
    data = stored.data();
    owner = source->tensors()[0]->file;
  } else {
    data = allocate(job, owner);
  }
  if (job.format != QuantFormat::kF8) return made_weight(job, data, nullptr, std::move(owner));
  std::shared_ptr<const void> scales_owner;
  const std::byte* scales = allocate(scales_job(job), scales_owner);
  return made_weight(
      job, data, scales,
      std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
          std::move(owner), std::move(scales_owner)));
}

Weight TensorBinder::matrix(const std::string& name, int rows, int cols, MatrixUse use) {
  const Source source = take(name, {rows, cols});
  if (source == nullptr) return {};
  return place(source, 0, static_cast<std::size_t>(rows), use, false);
}

StreamedMatrix TensorBinder::streamed_matrix(const std::string& name, int rows, int cols,
                                             MatrixUse use) {
  const Source source = take(name, {rows, cols});
  if (source == nullptr) return {};
  return {name, weight_job(source, 0, static_cast<std::size_t>(rows), use, false, options_), use};
}

Weight TensorBinder::flat_matrix(const std::string& name,
                                 std::initializer_list<std::int64_t> shape) {
  const Source source = take(name, shape);
  if (source == nullptr) return {};
  if (source->kind() != StoredMatrix::Kind::kPlain || is_block_type(source->type())) {
    problem(fmt::format("tensor {} is stored as {}, and only plain floats are read there", name,
                        source->description()),
            true);
    return {};
  }
  const auto rows = static_cast<std::size_t>(*shape.begin());
  const std::size_t cols = source->rows() * source->cols() / rows;
  auto stored =
      std::make_shared<const Weight>(place(source, 0, source->rows(), MatrixUse::kKept, false));
  return Weight::borrow(stored->format(), rows, cols, stored->data(), stored);
}

std::vector<Weight> TensorBinder::head_matrices(const std::string& name,
                                                std::initializer_list<std::int64_t> shape,
                                                int heads, int head_rows, int first, int rows) {
  const Source source = take(name, shape);
  if (source == nullptr) return {};
  std::vector<Weight> matrices;
  for (int head = 0; head < heads; ++head) {
    const auto row = static_cast<std::size_t>(head) * static_cast<std::size_t>(head_rows) +
                     static_cast<std::size_t>(first);
    matrices.push_back(
        place(source, row, static_cast<std::size_t>(rows), MatrixUse::kAttention, true));
  }
  return matrices;
}

void TensorBinder::load() {
  const std::optional<PackedCache> cache = packed_cache();
  if (cache && cache->fill(chunks_, options_)) {
    if (options_.progress) options_.progress(source_bytes(), source_bytes());
  } else {
    run_jobs();
    if (cache) cache->save(chunks_);
  }
  jobs_.clear();
  log_formats();
}

// What the config did not say, and what was not needed.
void TensorBinder::log_formats() const {
  if (const std::string line = undeclared_schemes(quantisation_, schemes_); !line.empty())
    log_info(line);
  std::vector<std::string> unread;
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (!used_.contains(name)) unread.push_back(name);
  }
  if (unread.empty()) return;
  log_debug(fmt::format("{} tensors are not used, being for quantised activations or caches: {}",
                        unread.size(), fmt::join(unread, ", ")));
}

std::uint64_t TensorBinder::source_bytes() const {
  std::uint64_t total = 0;
  for (const WeightJob& job : jobs_) total += job.source_bytes();
  return total;
}

// None where nothing is packed: a copy of copies saves no time.
std::optional<PackedCache> TensorBinder::packed_cache() const {
  const bool packs = std::any_of(jobs_.begin(), jobs_.end(), [](const WeightJob& job) {
    return job.work == WeightJob::Work::kPack;
  });
  if (options_.packed_cache.empty() || !packs) return std::nullopt;
  std::filesystem::path name;
  if (checkpoint_.gguf() != nullptr) {
    name = checkpoint_.gguf()->path().stem();
  } else {
    std::error_code ignored;  // then there is no name, which is fine too
    name = std::filesystem::canonical(checkpoint_.folder(), ignored).filename();
  }
  return PackedCache(options_.packed_cache, name.string(), packed_key());
}

// The whole source would take as long to read as to pack: its files' sizes and times, and samples
// of every matrix, stand for it.
PackedKey TensorBinder::packed_key() const {
  PackedKeyBuilder builder;
  builder.add(kPackedVersion);
  // Of what the config decides, only this is in no matrix's description.
  builder.add(static_cast<std::uint64_t>(quantisation_.gptq_zeros_less_one));
  std::set<const MappedFile*> files;
  for (const WeightJob& job : jobs_) {
    for (const TensorRef* tensor : job.source->tensors()) {
      const MappedFile* file = tensor->file.get();
      if (!files.insert(file).second) continue;
      std::error_code ignored;
      const auto time = std::filesystem::last_write_time(file->path(), ignored).time_since_epoch();
      builder.add(file->bytes().size());
      builder.add(static_cast<std::uint64_t>(time.count()));
    }
  }
  std::vector<PackedKey> keys(jobs_.size());
  const auto task = [&](std::size_t i, int) {
    keys[i] = jobs_[i].key();
    jobs_[i].release(0, jobs_[i].units());
  };
  if (options_.pool != nullptr) {
    options_.pool->run(keys.size(), task);
  } else {
    for (std::size_t i = 0; i < keys.size(); ++i) task(i, 0);
  }
  for (const PackedKey& key : keys) builder.add(key);
  return builder.key();
}

void TensorBinder::run_jobs() {
  struct Piece {
    const WeightJob* job;
    std::size_t first, last;  // units
  };
  std::vector<Piece> pieces;
  const std::uint64_t total = source_bytes();
  for (const WeightJob& job : jobs_) {
    const std::size_t step = std::max<std::size_t>(1, kPieceBytes / job.unit_bytes());
    for (std::size_t unit = 0; unit < job.units(); unit += step)
      pieces.push_back({&job, unit, std::min(job.units(), unit + step)});
  }
  constexpr std::size_t kPiecesPerReport = 32;
  std::uint64_t done = 0;
  for (std::size_t begin = 0; begin < pieces.size(); begin += kPiecesPerReport) {
    const std::size_t count = std::min(kPiecesPerReport, pieces.size() - begin);
    const auto task = [&](std::size_t i, int) {
      const Piece& piece = pieces[begin + i];
      piece.job->run(piece.first, piece.last, options_.kernels);
    };
    if (options_.pool != nullptr) {
      options_.pool->run(count, task);
    } else {
      for (std::size_t i = 0; i < count; ++i) task(i, 0);
    }
    for (std::size_t i = begin; i < begin + count; ++i) {
      const auto& [job, first, last] = pieces[i];
      done += job->source_bytes(last) - job->source_bytes(first);
      job->release(first, last);
    }
    if (options_.progress) options_.progress(done, total);
  }
  if (pieces.empty() && options_.progress) options_.progress(1, 1);
}

std::vector<float> TensorBinder::values(const std::string& name,
                                        std::initializer_list<std::int64_t> shape) {
  const Source source = take(name, shape, false);
  if (source == nullptr) return {};  // no memory for what a config merely promises
  if (source->kind() != StoredMatrix::Kind::kPlain || is_block_type(source->type())) {
    problem(
        fmt::format("tensor {} is {}: vectors are stored as floats", name, source->description()),
        true);
    return {};
  }
  std::vector<float> values(source->rows() * source->cols());
  source->decode_rows(0, source->rows(), values.data());
  return values;
}

bool TensorBinder::same_contents(const std::string& name, const std::string& other) const {
  if (checks_only_) return false;  // both are checked, and none of their bytes is read
  const auto a = find_matrix(checkpoint_, quantisation_, name);
  const auto b = find_matrix(checkpoint_, quantisation_, other);
  if (!a || !b) return false;
  const auto alike = [](const TensorRef* x, const TensorRef* y) {
    return x->dtype == y->dtype && x->shape == y->shape && x->bytes.size() == y->bytes.size();
  };
  return std::ranges::equal((*a)->tensors(), (*b)->tensors(), alike) &&
         std::ranges::equal(
             (*a)->tensors(), (*b)->tensors(),
             [&](const TensorRef* x, const TensorRef* y) { return same_bytes(*x, *y); });
}

bool TensorBinder::same_bytes(const TensorRef& a, const TensorRef& b) const {
  std::atomic<bool> same = true;
  const auto compare = [&](std::size_t piece, int) {
    const std::size_t at = piece * kPieceBytes;
    const std::size_t n = std::min(kPieceBytes, a.bytes.size() - at);
    if (same && std::memcmp(a.bytes.data() + at, b.bytes.data() + at, n) != 0) same = false;
    for (const TensorRef* tensor : {&a, &b}) {
      const std::byte* file = tensor->file->bytes().data();
      tensor->file->release(static_cast<std::size_t>(tensor->bytes.data() - file) + at, n);
    }
  };
  const std::size_t pieces = (a.bytes.size() + kPieceBytes - 1) / kPieceBytes;
  if (options_.pool != nullptr) {
    options_.pool->run(pieces, compare);
  } else {
    for (std::size_t piece = 0; piece < pieces; ++piece) compare(piece, 0);
  }
  return same;
}

// GPTQ's tools write a bias beside every matrix, zero where the model has none.
bool TensorBinder::is_silent_bias(const TensorRef& tensor) const {
  constexpr std::string_view kBias = ".bias";
  if (!tensor.name.ends_with(kBias)) return false;
  const std::string stem = tensor.name.substr(0, tensor.name.size() - kBias.size());
  return checkpoint_.find(stem + ".qweight") != nullptr &&
         std::ranges::all_of(tensor.bytes, [](std::byte b) { return b == std::byte{0}; });
}

void TensorBinder::skip(const std::function<bool(std::string_view)>& matches) {
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (matches(name)) used_.insert(name);
  }
}

Status TensorBinder::finish() const {
  std::vector<std::string> listed = problems_;
  std::size_t total = num_problems_;
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (used_.contains(name)) continue;
    const auto [role, matrix] = place_of(name);
    if (role == TensorRole::kUnread || is_silent_bias(tensor)) continue;
    ++total;
    if (listed.size() >= kMaxListed) continue;
    const bool idle = role == TensorRole::kPart && used_.contains(matrix);
    listed.push_back(
        fmt::format("tensor {} in {} is {}", name,
                    tensor.file == nullptr ? "?" : tensor.file->path().filename().string(),
                    idle ? fmt::format("no part of how {} is stored", matrix)
                         : std::string("not part of this architecture")));
  }
  if (total == 0) return {};
  std::string text =
      fmt::format("{}: the tensors do not fit config.json:", checkpoint_.folder().string());
  for (const std::string& line : listed) text += "\n  " + line;
  if (total > listed.size()) text += fmt::format("\n  ... and {} more", total - listed.size());
  text += "\nDownload the checkpoint again, or correct config.json.";
  return Error{unsupported_ ? ErrorCode::kUnsupported : ErrorCode::kCorrupt, std::move(text)};
}

}  // namespace glint
