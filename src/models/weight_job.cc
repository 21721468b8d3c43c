#include "models/weight_job.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/table.h"
#include "tensor/ggml_blocks.h"
#include "tensor/panel.h"

namespace glint {
namespace {

constexpr std::size_t kSampleBytes = 4096;  // of a matrix in its file, three times

std::size_t type_index(DType type) {
  return static_cast<std::size_t>(type) - static_cast<std::size_t>(kFirstBlockType);
}

std::size_t row_bytes_of(DType type, std::size_t cols) {
  const BlockSize block = block_size(type);
  return cols / block.elements * block.bytes;
}

}  // namespace

std::size_t WeightJob::unit_rows() const {
  return work == Work::kPack ? kPanelRows : 1;
}

std::size_t WeightJob::unit_bytes() const {
  return work == Work::kPack ? panel_format(type).panel_bytes(cols()) : row_bytes_of(type, cols());
}

std::size_t WeightJob::units() const {
  return work == Work::kScales ? 1 : (rows + unit_rows() - 1) / unit_rows();
}

std::size_t WeightJob::nbytes() const {
  if (work != Work::kScales) return Weight::bytes_of(format, type, rows, cols());
  const StoredMatrix::Grid grid = source->grid();
  return grid.rows * grid.cols * sizeof(float);
}

std::uint64_t WeightJob::source_bytes(std::size_t unit) const {
  const std::size_t row = std::min(unit * unit_rows(), rows);
  if (work == Work::kScales) return 0;  // the codes' job counts them
  const std::span<const std::byte> bytes = source->row_bytes(first, row);
  if (source->tensors().size() == 1) return bytes.size();
  return source->nbytes() * row / source->rows();
}
PackedKey WeightJob::key() const {
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

void WeightJob::run(std::size_t begin, std::size_t end, const KernelTable* table) const {
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
void WeightJob::pack(std::size_t begin, std::size_t end, const KernelTable* table) const {
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
const std::byte* WeightJob::rows_of_blocks(std::size_t row, std::size_t count,
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

void WeightJob::release(std::size_t begin, std::size_t end) const {
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

WeightJob weight_job(std::shared_ptr<const StoredMatrix> source, std::size_t first,
                     std::size_t rows, MatrixUse use, bool expand, const LoadOptions& options) {
  using Kind = StoredMatrix::Kind;
  using Work = WeightJob::Work;
  const bool in_groups = source->kind() == Kind::kGroups;
  const bool expands =
      (expand && source->kind() != Kind::kPlain) || (in_groups && !source->has_blocks());
  const WeightForm form =
      expands ? expanded_form(options) : weight_form(source->type(), source->cols(), use, options);
  WeightJob job{std::move(source), first, rows};
  job.format = form.format;
  job.type = form.type;
  job.work = expands                               ? Work::kExpand
             : form.format == QuantFormat::kPanels ? Work::kPack
             : in_groups                           ? Work::kBlocks
                                                   : Work::kCopy;
  return job;
}

WeightJob scales_job(const WeightJob& job) {
  WeightJob scales = job;
  scales.work = WeightJob::Work::kScales;
  return scales;
}

Weight made_weight(const WeightJob& job, const std::byte* data, const std::byte* scales,
                   std::shared_ptr<const void> owner) {
  if (job.format != QuantFormat::kF8) {
    return Weight::borrow(job.format, job.type, job.rows, job.cols(), data, std::move(owner))
        .with_factor(job.source->factor());
  }
  const StoredMatrix::Grid grid = job.source->grid();
  return Weight::borrow_f8(job.rows, job.cols(), data,
                           {.values = reinterpret_cast<const float*>(scales),
                            .block_rows = static_cast<int>(grid.block_rows),
                            .block_cols = static_cast<int>(grid.block_cols),
                            .stride = grid.cols,
                            .first_row = static_cast<int>(job.first)},
                           std::move(owner));
}

}  // namespace glint
