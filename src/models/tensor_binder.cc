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
#include "tensor/ggml_blocks.h"
#include "tensor/panel.h"

namespace glint {
namespace {

constexpr std::size_t kMaxListed = 12;

// Weights lie one after another in chunks of address space; what is never written costs nothing.
constexpr std::size_t kArenaBytes = std::size_t{256} << 20;
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;  // of destination, for one task

// Raise it whenever a job would write other bytes than before: packed weights that were kept on
// disk are then made anew.
constexpr std::uint64_t kPackedVersion = 2;
constexpr std::size_t kSampleBytes = 4096;  // of a matrix in its file, three times

std::size_t type_index(DType type) {
  return static_cast<std::size_t>(type) - static_cast<std::size_t>(kFirstBlockType);
}

std::size_t row_bytes_of(DType type, std::size_t cols) {
  const BlockSize block = block_size(type);
  return cols / block.elements * block.bytes;
}

}  // namespace

// Rows [first, first + rows) of a matrix on their way to memory.
struct TensorBinder::Job {
  enum class Work {
    kCopy,    // rows as they lie in the file
    kBlocks,  // rows of blocks, put together
    kPack,    // panels of them, of the file's blocks, or of blocks that floats are encoded to
    kExpand,  // bf16 or float32
    kScales   // the grid of an FP8 matrix
  };
  Source source;
  std::size_t first = 0, rows = 0;
  Work work = Work::kCopy;
  QuantFormat format = QuantFormat::kF32;  // of the destination
  DType type = DType::kF32;
  std::byte* to = nullptr;
  std::size_t chunk = 0, chunk_offset = 0;  // where that is

  std::size_t cols() const { return source->cols(); }
  // Rows that belong together in the destination.
  std::size_t unit_rows() const { return work == Work::kPack ? kPanelRows : 1; }
  std::size_t unit_bytes() const {
    return work == Work::kPack ? panel_format(type).panel_bytes(cols())
                               : row_bytes_of(type, cols());
  }
  // Scales are written at once: they are few.
  std::size_t units() const {
    return work == Work::kScales ? 1 : (rows + unit_rows() - 1) / unit_rows();
  }

  // Bytes of the file that units before `unit` stand for.
  std::uint64_t source_bytes(std::size_t unit) const {
    const std::size_t row = std::min(unit * unit_rows(), rows);
    if (work == Work::kScales) return 0;  // the codes' job counts them
    const std::span<const std::byte> bytes = source->row_bytes(first, row);
    if (source->tensors().size() == 1) return bytes.size();
    return source->nbytes() * row / source->rows();
  }
  std::uint64_t source_bytes() const { return source_bytes(units()); }

  // Of what decides the bytes that run() writes, and where; the source is sampled.
  PackedKey key() const {
    PackedKeyBuilder builder;
    builder.add(source->description());
    for (const std::size_t number :
         {first, rows, source->rows(), cols(), chunk, chunk_offset, unit_bytes()})
      builder.add(number);
    builder.add(static_cast<std::uint64_t>(work));
    builder.add(static_cast<std::uint64_t>(format));
    builder.add(static_cast<std::uint64_t>(type));
    const auto sample = [&](std::span<const std::byte> bytes) {
      const std::size_t n = std::min(kSampleBytes, bytes.size());
      for (const std::size_t at : {std::size_t{0}, (bytes.size() - n) / 2, bytes.size() - n})
        builder.add(bytes.subspan(at, n));
    };
    for (const TensorRef* tensor : source->tensors()) {
      builder.add(tensor->name);
      builder.add(static_cast<std::uint64_t>(tensor->dtype));
      for (const std::int64_t dim : tensor->shape) builder.add(static_cast<std::uint64_t>(dim));
      if (source->tensors().size() > 1) sample(tensor->bytes);
    }
    if (source->tensors().size() == 1) sample(source->row_bytes(first, rows));
    return builder.key();
  }

  // Writes units [begin, end).
  void run(std::size_t begin, std::size_t end, const KernelTable* table) const {
    std::byte* out = to + begin * unit_bytes();
    switch (work) {
      case Work::kCopy: {
        const std::span<const std::byte> bytes = source->row_bytes(first + begin, end - begin);
        std::memcpy(out, bytes.data(), bytes.size());
        return;
      }
      case Work::kScales:
        return source->write_grid(reinterpret_cast<float*>(to));
      case Work::kPack:
        return pack(begin, end, table);
      case Work::kBlocks:
      case Work::kExpand:
        break;
    }
    std::vector<float> wide;
    for (std::size_t row = begin; row < end; row += kPanelRows) {
      const std::size_t count = std::min<std::size_t>(kPanelRows, end - row);
      std::byte* at = to + row * unit_bytes();
      if (work == Work::kBlocks) {
        source->write_blocks(first + row, count, at);
        continue;
      }
      wide.resize(count * cols());
      source->decode_rows(first + row, count, wide.data());
      if (type == DType::kF32) {
        std::memcpy(at, wide.data(), wide.size() * sizeof(float));
        continue;
      }
      for (std::size_t i = 0; i < wide.size(); ++i) {
        const bf16 value = bf16::from_float(wide[i]);
        std::memcpy(at + i * sizeof value, &value, sizeof value);
      }
    }
  }

  // Panels [begin, end).
  void pack(std::size_t begin, std::size_t end, const KernelTable* table) const {
    std::vector<std::byte> blocks;
    const std::size_t block_row = row_bytes_of(type, cols());
    for (std::size_t unit = begin; unit < end; ++unit) {
      const std::size_t row = first + unit * kPanelRows;
      const std::size_t count = std::min<std::size_t>(kPanelRows, first + rows - row);
      const std::byte* from = rows_of_blocks(row, count, blocks);
      std::byte* panel = to + unit * unit_bytes();
      const int n = static_cast<int>(count);
      if (table != nullptr) {
        table->pack_panel[type_index(type)](from, block_row, n, cols(), panel);
      } else {
        pack_panel(type, from, block_row, n, cols(), panel);
      }
    }
  }

  // `count` rows as blocks of `type`: those of the file, or made in `blocks`.
  const std::byte* rows_of_blocks(std::size_t row, std::size_t count,
                                  std::vector<std::byte>& blocks) const {
    const bool same = source->type() == type;
    if (same && source->kind() == StoredMatrix::Kind::kPlain)
      return source->row_bytes(row, count).data();
    const std::size_t block_row = row_bytes_of(type, cols());
    blocks.resize(count * block_row);
    if (same) {
      source->write_blocks(row, count, blocks.data());
      return blocks.data();
    }
    std::vector<float> wide(count * cols());
    source->decode_rows(row, count, wide.data());
    const auto encode = type == DType::kQ8_0 ? encode_q8_0 : encode_q4_0;
    for (std::size_t r = 0; r < count; ++r)
      encode(wide.data() + r * cols(), cols(), blocks.data() + r * block_row);
    return blocks.data();
  }

  // Otherwise the copy and the file's pages would both count as ours.
  void release(std::size_t begin, std::size_t end) const {
    const auto let_go = [](const TensorRef& tensor, std::span<const std::byte> bytes) {
      tensor.file->release(static_cast<std::size_t>(bytes.data() - tensor.file->bytes().data()),
                           bytes.size());
    };
    const std::size_t row = first + begin * unit_rows();
    const std::size_t last = first + std::min(end * unit_rows(), rows);
    if (work == Work::kScales) return;
    if (const auto bytes = source->row_bytes(row, last - row); !bytes.empty())
      let_go(*source->tensors()[0], bytes);
    if (source->tensors().size() == 1 || end < units()) return;
    for (const TensorRef* tensor : source->tensors()) let_go(*tensor, tensor->bytes);
  }
};

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

std::byte* TensorBinder::allocate(Job job, std::size_t nbytes, std::shared_ptr<const void>& owner) {
  const std::size_t rounded = (nbytes + 63) / 64 * 64;
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
  using Kind = StoredMatrix::Kind;
  using Work = Job::Work;
  const std::size_t cols = source->cols();
  if (checks_only_) return Weight::borrow(QuantFormat::kF32, rows, cols, nullptr, nullptr);
  const bool in_groups = source->kind() == Kind::kGroups;
  const bool expands =
      (expand && source->kind() != Kind::kPlain) || (in_groups && !source->has_blocks());
  const auto [format, type] =
      expands ? expanded_form(options_) : weight_form(source->type(), cols, use, options_);
  std::shared_ptr<const void> owner;
  const std::byte* data = nullptr;
  const std::span<const std::byte> stored = source->row_bytes(first, rows);
  // Files promise no alignment; kernels need an element's.
  const std::size_t element = is_block_type(type) ? 1 : dtype_bytes(type);
  if (!in_groups && type == source->type() && stays_in_file(format, options_) &&
      reinterpret_cast<std::uintptr_t>(stored.data()) % element == 0) {
    data = stored.data();
    owner = source->tensors()[0]->file;
  } else {
    const Work work = expands                          ? Work::kExpand
                      : format == QuantFormat::kPanels ? Work::kPack
                      : in_groups                      ? Work::kBlocks
                                                       : Work::kCopy;
    data = allocate({source, first, rows, work, format, type},
                    Weight::bytes_of(format, type, rows, cols), owner);
  }
  if (format != QuantFormat::kF8) {
    return Weight::borrow(format, type, rows, cols, data, std::move(owner))
        .with_factor(source->factor());
  }
  const StoredMatrix::Grid grid = source->grid();
  std::shared_ptr<const void> scales_owner;
  const std::byte* scales = allocate({source, first, rows, Work::kScales, format, type},
                                     grid.rows * grid.cols * sizeof(float), scales_owner);
  return Weight::borrow_f8(
      rows, cols, data,
      {.values = reinterpret_cast<const float*>(scales),
       .block_rows = static_cast<int>(grid.block_rows),
       .block_cols = static_cast<int>(grid.block_cols),
       .stride = grid.cols,
       .first_row = static_cast<int>(first)},
      std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
          std::move(owner), std::move(scales_owner)));
}

Weight TensorBinder::matrix(const std::string& name, int rows, int cols, MatrixUse use) {
  const Source source = take(name, {rows, cols});
  if (source == nullptr) return {};
  return place(source, 0, static_cast<std::size_t>(rows), use, false);
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
  for (const Job& job : jobs_) total += job.source_bytes();
  return total;
}

// None where nothing is packed: a copy of copies saves no time.
std::optional<PackedCache> TensorBinder::packed_cache() const {
  const bool packs = std::any_of(jobs_.begin(), jobs_.end(),
                                 [](const Job& job) { return job.work == Job::Work::kPack; });
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
  for (const Job& job : jobs_) {
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
    const Job* job;
    std::size_t first, last;  // units
  };
  std::vector<Piece> pieces;
  const std::uint64_t total = source_bytes();
  for (const Job& job : jobs_) {
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
