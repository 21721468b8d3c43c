#include "models/tensor_binder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/numa.h"
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

  std::size_t source_row_bytes() const { return row_bytes_of(tensor->dtype, cols); }
  // Rows that belong together in the destination.
  std::size_t unit_rows() const { return format == QuantFormat::kPanels ? kPanelRows : 1; }
  std::size_t unit_bytes() const {
    return format == QuantFormat::kPanels ? panel_format(type).panel_bytes(cols)
                                          : row_bytes_of(type, cols);
  }
  std::size_t units() const { return (rows + unit_rows() - 1) / unit_rows(); }

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
  if (arena_ == nullptr || arena_->size() - arena_used_ < rounded) {
    arena_ = std::make_shared<AlignedBuffer>(std::max(rounded, kArenaBytes));
    arena_used_ = 0;
    if (options_.interleave) {
      const Status spread = interleave_memory(arena_->data(), arena_->size());
      if (!spread) log_warn(spread.error().message);
    }
  }
  owner = arena_;
  std::byte* at = arena_->data() + arena_used_;
  arena_used_ += rounded;
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
  jobs_.push_back({&tensor, offset, rows, cols, format, type, to});
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
  struct Piece {
    const Job* job;
    std::size_t first, last;  // units
    std::size_t source_bytes() const {
      const std::size_t end = std::min(last * job->unit_rows(), job->rows);
      return (end - first * job->unit_rows()) * job->source_row_bytes();
    }
  };
  std::vector<Piece> pieces;
  std::uint64_t total = 0;
  for (const Job& job : jobs_) {
    total += job.rows * job.source_row_bytes();
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
  jobs_.clear();
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
