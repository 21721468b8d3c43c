#include "models/tensor_binder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
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

// Elements of any float type as float32; `bytes` need not be aligned.
void widen(DType dtype, const std::byte* bytes, std::size_t count, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, bytes, count * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    out[i] = dtype == DType::kBf16 ? bf16{bits}.to_float() : f16_to_float(bits);
  }
}

// Weights lie one after another in chunks of address space; what is never written costs nothing.
constexpr std::size_t kArenaBytes = std::size_t{256} << 20;
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;  // of destination, for one task

// Raise it whenever a job would write other bytes than before: packed weights that were kept on
// disk are then made anew.
constexpr std::uint64_t kPackedVersion = 1;
constexpr std::size_t kSampleBytes = 4096;  // of a matrix in its file, three times

std::size_t type_index(DType type) {
  return static_cast<std::size_t>(type) - static_cast<std::size_t>(kFirstBlockType);
}

std::size_t row_bytes_of(DType type, std::size_t cols) {
  const BlockSize block = block_size(type);
  return cols / block.elements * block.bytes;
}

}  // namespace

struct TensorBinder::Job {
  const TensorRef* tensor;
  std::size_t offset;  // of the first row in the tensor's bytes
  std::size_t rows, cols;
  QuantFormat format;  // of the destination
  DType type;
  std::byte* to;
  std::size_t chunk, chunk_offset;  // where that is

  std::size_t source_row_bytes() const { return row_bytes_of(tensor->dtype, cols); }
  // Rows that belong together in the destination.
  std::size_t unit_rows() const { return format == QuantFormat::kPanels ? kPanelRows : 1; }
  std::size_t unit_bytes() const {
    return format == QuantFormat::kPanels ? panel_format(type).panel_bytes(cols)
                                          : row_bytes_of(type, cols);
  }
  std::size_t units() const { return (rows + unit_rows() - 1) / unit_rows(); }

  std::span<const std::byte> source() const {
    return tensor->bytes.subspan(offset, rows * source_row_bytes());
  }

  // Of what decides the bytes that run() writes, and where; the source is sampled.
  PackedKey key() const {
    PackedKeyBuilder builder;
    builder.add(tensor->name);
    builder.add(static_cast<std::uint64_t>(tensor->dtype));
    for (const std::int64_t dim : tensor->shape) builder.add(static_cast<std::uint64_t>(dim));
    for (const std::size_t number : {offset, rows, cols, chunk, chunk_offset, unit_bytes()})
      builder.add(number);
    builder.add(static_cast<std::uint64_t>(format));
    builder.add(static_cast<std::uint64_t>(type));
    const std::span<const std::byte> bytes = source();
    const std::size_t sample = std::min(kSampleBytes, bytes.size());
    for (const std::size_t at :
         {std::size_t{0}, (bytes.size() - sample) / 2, bytes.size() - sample})
      builder.add(bytes.subspan(at, sample));
    return builder.key();
  }

  // Copies or packs units [first, last).
  void run(std::size_t first, std::size_t last, const KernelTable* table) const {
    const std::byte* from = tensor->bytes.data() + offset;
    if (format != QuantFormat::kPanels) {
      std::memcpy(to + first * unit_bytes(), from + first * source_row_bytes(),
                  (last - first) * unit_bytes());
      return;
    }
    std::vector<float> wide;
    std::vector<std::byte> blocks;
    const std::size_t block_row = row_bytes_of(type, cols);
    for (std::size_t unit = first; unit < last; ++unit) {
      const std::size_t row = unit * kPanelRows;
      const std::size_t count = std::min<std::size_t>(kPanelRows, rows - row);
      const std::byte* source = from + row * source_row_bytes();
      if (tensor->dtype != type) {
        wide.resize(cols);
        blocks.resize(count * block_row);
        for (std::size_t r = 0; r < count; ++r) {
          widen(tensor->dtype, source + r * source_row_bytes(), cols, wide.data());
          if (type == DType::kQ8_0) {
            encode_q8_0(wide.data(), cols, blocks.data() + r * block_row);
          } else {
            encode_q4_0(wide.data(), cols, blocks.data() + r * block_row);
          }
        }
        source = blocks.data();
      }
      std::byte* panel = to + unit * unit_bytes();
      const int n = static_cast<int>(count);
      if (table != nullptr) {
        table->pack_panel[type_index(type)](source, block_row, n, cols, panel);
      } else {
        pack_panel(type, source, block_row, n, cols, panel);
      }
    }
  }
};

namespace {

LoadOptions without_memory() {
  LoadOptions options;
  options.placement = WeightPlacement::kMapped;
  options.repack = false;
  return options;
}

}  // namespace

TensorBinder::TensorBinder(const Checkpoint& checkpoint)
    : TensorBinder(checkpoint, without_memory()) {}

TensorBinder::TensorBinder(const Checkpoint& checkpoint, const LoadOptions& options)
    : checkpoint_(checkpoint), options_(options) {}

TensorBinder::~TensorBinder() = default;

void TensorBinder::problem(std::string text, bool is_unsupported) {
  ++num_problems_;
  unsupported_ = unsupported_ || is_unsupported;
  if (problems_.size() < kMaxListed) problems_.push_back(std::move(text));
}

const TensorRef* TensorBinder::take(const std::string& name,
                                    std::initializer_list<std::int64_t> shape) {
  used_.insert(name);
  const TensorRef* tensor = checkpoint_.find(name);
  if (tensor == nullptr) {
    problem(fmt::format("tensor {} is missing: {}", name, checkpoint_.why_missing(name)), false);
    return nullptr;
  }
  const std::string file = tensor->file == nullptr ? "?" : tensor->file->path().filename().string();
  if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
    problem(fmt::format("tensor {} in {} has shape [{}] where config.json asks for [{}]", name,
                        file, fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")),
            false);
    return nullptr;
  }
  if (tensor->dtype != DType::kBf16 && tensor->dtype != DType::kF32 &&
      tensor->dtype != DType::kF16 && !is_block_type(tensor->dtype)) {
    problem(
        fmt::format("tensor {} in {} is {}: this version computes BF16, F16 and F32 weights and "
                    "the block types of GGUF files only",
                    name, file, dtype_name(tensor->dtype)),
        true);
    return nullptr;
  }
  return tensor;
}

std::byte* TensorBinder::allocate(std::size_t nbytes, std::shared_ptr<const void>& owner) {
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
  std::byte* at = chunk.buffer->data() + chunk.used;
  chunk.used += rounded;
  return at;
}

Weight TensorBinder::place(const TensorRef& tensor, std::size_t offset, std::size_t rows,
                           std::size_t cols, MatrixUse use) {
  const auto [format, type] = weight_form(tensor.dtype, cols, use, options_);
  const std::byte* source = tensor.bytes.data() + offset;
  // Files promise no alignment; kernels need an element's.
  const std::size_t element = is_block_type(type) ? 1 : dtype_bytes(type);
  const bool aligned = reinterpret_cast<std::uintptr_t>(source) % element == 0;
  if (stays_in_file(format, options_) && aligned) {
    return Weight::borrow(format, type, rows, cols, source, tensor.file);
  }
  std::shared_ptr<const void> owner;
  std::byte* to = allocate(Weight::bytes_of(format, type, rows, cols), owner);
  const auto chunk_offset = static_cast<std::size_t>(to - chunks_.back().buffer->data());
  jobs_.push_back(
      {&tensor, offset, rows, cols, format, type, to, chunks_.size() - 1, chunk_offset});
  return Weight::borrow(format, type, rows, cols, to, std::move(owner));
}

Weight TensorBinder::matrix(const std::string& name, int rows, int cols, MatrixUse use) {
  const TensorRef* tensor = take(name, {rows, cols});
  if (tensor == nullptr) return {};
  return place(*tensor, 0, static_cast<std::size_t>(rows), static_cast<std::size_t>(cols), use);
}

std::vector<Weight> TensorBinder::head_matrices(const std::string& name,
                                                std::initializer_list<std::int64_t> shape,
                                                int heads, int head_rows, int first, int rows) {
  const TensorRef* tensor = take(name, shape);
  if (tensor == nullptr) return {};
  const auto cols = static_cast<std::size_t>(*(shape.end() - 1));
  const std::size_t row_bytes = row_bytes_of(tensor->dtype, cols);
  std::vector<Weight> matrices;
  for (int head = 0; head < heads; ++head) {
    const auto row = static_cast<std::size_t>(head) * static_cast<std::size_t>(head_rows) +
                     static_cast<std::size_t>(first);
    matrices.push_back(place(*tensor, row * row_bytes, static_cast<std::size_t>(rows), cols,
                             MatrixUse::kAttention));
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
}

std::uint64_t TensorBinder::source_bytes() const {
  std::uint64_t total = 0;
  for (const Job& job : jobs_) total += job.source().size();
  return total;
}

// None where nothing is packed: a copy of copies saves no time.
std::optional<PackedCache> TensorBinder::packed_cache() const {
  const bool packs = std::any_of(jobs_.begin(), jobs_.end(),
                                 [](const Job& job) { return job.format == QuantFormat::kPanels; });
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
  std::set<const MappedFile*> files;
  for (const Job& job : jobs_) {
    const MappedFile* file = job.tensor->file.get();
    if (!files.insert(file).second) continue;
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(file->path(), ignored).time_since_epoch();
    builder.add(file->bytes().size());
    builder.add(static_cast<std::uint64_t>(time.count()));
  }
  std::vector<PackedKey> keys(jobs_.size());
  const auto task = [&](std::size_t i, int) {
    keys[i] = jobs_[i].key();
    const std::span<const std::byte> bytes = jobs_[i].source();
    const MappedFile& file = *jobs_[i].tensor->file;
    file.release(static_cast<std::size_t>(bytes.data() - file.bytes().data()), bytes.size());
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
    std::size_t source_bytes() const {
      const std::size_t end = std::min(last * job->unit_rows(), job->rows);
      return (end - first * job->unit_rows()) * job->source_row_bytes();
    }
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
      const Piece& piece = pieces[i];
      const TensorRef& from = *piece.job->tensor;
      done += piece.source_bytes();
      // Otherwise the copy and the file's pages would both count as ours.
      const auto offset = static_cast<std::size_t>(from.bytes.data() - from.file->bytes().data()) +
                          piece.job->offset +
                          piece.first * piece.job->unit_rows() * piece.job->source_row_bytes();
      from.file->release(offset, piece.source_bytes());
    }
    if (options_.progress) options_.progress(done, total);
  }
  if (pieces.empty() && options_.progress) options_.progress(1, 1);
}

std::vector<float> TensorBinder::vector(const std::string& name, int n) {
  const TensorRef* tensor = take(name, {n});
  if (tensor == nullptr) return {};  // no memory for what a config merely promises
  if (is_block_type(tensor->dtype)) {
    problem(fmt::format("tensor {} is {}: vectors are stored as floats", name,
                        dtype_name(tensor->dtype)),
            true);
    return {};
  }
  std::vector<float> values(static_cast<std::size_t>(n));
  widen(tensor->dtype, tensor->bytes.data(), values.size(), values.data());
  return values;
}

bool TensorBinder::same_contents(const std::string& name, const std::string& other) const {
  const TensorRef* a = checkpoint_.find(name);
  const TensorRef* b = checkpoint_.find(other);
  if (a == nullptr || b == nullptr || a->dtype != b->dtype || a->shape != b->shape ||
      a->bytes.size() != b->bytes.size()) {
    return false;
  }
  std::atomic<bool> same = true;
  const auto compare = [&](std::size_t piece, int) {
    const std::size_t at = piece * kPieceBytes;
    const std::size_t n = std::min(kPieceBytes, a->bytes.size() - at);
    if (same && std::memcmp(a->bytes.data() + at, b->bytes.data() + at, n) != 0) same = false;
    for (const TensorRef* tensor : {a, b}) {
      const std::byte* file = tensor->file->bytes().data();
      tensor->file->release(static_cast<std::size_t>(tensor->bytes.data() - file) + at, n);
    }
  };
  const std::size_t pieces = (a->bytes.size() + kPieceBytes - 1) / kPieceBytes;
  if (options_.pool != nullptr) {
    options_.pool->run(pieces, compare);
  } else {
    for (std::size_t piece = 0; piece < pieces; ++piece) compare(piece, 0);
  }
  return same;
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
    ++total;
    if (listed.size() < kMaxListed) {
      listed.push_back(
          fmt::format("tensor {} in {} is not part of this architecture", name,
                      tensor.file == nullptr ? "?" : tensor.file->path().filename().string()));
    }
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
