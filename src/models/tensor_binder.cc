#include "models/tensor_binder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"

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

}  // namespace

TensorBinder::TensorBinder(const Checkpoint& checkpoint, WeightPlacement placement)
    : checkpoint_(checkpoint), placement_(placement) {}

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
      tensor->dtype != DType::kF16) {
    problem(
        fmt::format("tensor {} in {} is {}: this version computes BF16, F16 and F32 weights only",
                    name, file, dtype_name(tensor->dtype)),
        true);
    return nullptr;
  }
  return tensor;
}

Weight TensorBinder::matrix(const std::string& name, int rows, int cols) {
  const TensorRef* tensor = take(name, {rows, cols});
  if (tensor == nullptr) return {};
  const auto r = static_cast<std::size_t>(rows), c = static_cast<std::size_t>(cols);
  const QuantFormat format = tensor->dtype == DType::kBf16 ? QuantFormat::kBf16 : QuantFormat::kF32;
  const std::size_t element = format == QuantFormat::kBf16 ? sizeof(bf16) : sizeof(float);
  // The format does not promise alignment; kernels need an element's.
  const bool aligned = reinterpret_cast<std::uintptr_t>(tensor->bytes.data()) % element == 0;
  if (placement_ == WeightPlacement::kMapped && tensor->dtype != DType::kF16 && aligned) {
    return Weight::borrow(format, r, c, tensor->bytes.data(), tensor->file);
  }
  AlignedBuffer buffer(r * c * element);
  copies_.push_back({tensor, buffer.data()});
  return Weight::own(format, r, c, std::move(buffer));
}

void TensorBinder::load(ThreadPool* pool,
                        const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  constexpr std::size_t kPieceBytes =
      std::size_t{4} << 20;  // whole huge pages, so that one thread touches each first
  struct Piece {
    const Copy* copy;
    std::size_t begin, end;  // bytes of the source
  };
  std::vector<Piece> pieces;
  std::uint64_t total = 0;
  bool widens = false;
  for (const Copy& copy : copies_) {
    const std::size_t nbytes = copy.from->bytes.size();
    widens = widens || copy.from->dtype == DType::kF16;
    total += nbytes;
    for (std::size_t at = 0; at < nbytes; at += kPieceBytes)
      pieces.push_back({&copy, at, std::min(nbytes, at + kPieceBytes)});
  }
  if (widens) log_info("float16 weights are widened to float32 in memory");
  const auto run = [](const Piece& piece) {
    const TensorRef& from = *piece.copy->from;
    const std::byte* bytes = from.bytes.data() + piece.begin;
    if (from.dtype == DType::kF16) {
      widen(from.dtype, bytes, (piece.end - piece.begin) / 2,
            reinterpret_cast<float*>(piece.copy->to) + piece.begin / 2);
    } else {
      std::memcpy(piece.copy->to + piece.begin, bytes, piece.end - piece.begin);
    }
  };
  constexpr std::size_t kPiecesPerReport = 32;
  std::uint64_t done = 0;
  for (std::size_t first = 0; first < pieces.size(); first += kPiecesPerReport) {
    const std::size_t count = std::min(kPiecesPerReport, pieces.size() - first);
    const auto task = [&](std::size_t i, int) { run(pieces[first + i]); };
    if (pool != nullptr) {
      pool->run(count, task);
    } else {
      for (std::size_t i = 0; i < count; ++i) task(i, 0);
    }
    for (std::size_t i = first; i < first + count; ++i) {
      const TensorRef& from = *pieces[i].copy->from;
      done += pieces[i].end - pieces[i].begin;
      // Otherwise the copy and the file's pages would both count as ours.
      const auto offset = static_cast<std::size_t>(from.bytes.data() - from.file->bytes().data());
      from.file->release(offset + pieces[i].begin, pieces[i].end - pieces[i].begin);
    }
    if (progress) progress(done, total);
  }
  if (pieces.empty() && progress) progress(1, 1);
  copies_.clear();
}

std::vector<float> TensorBinder::vector(const std::string& name, int n) {
  std::vector<float> values(static_cast<std::size_t>(n), 0.0f);
  const TensorRef* tensor = take(name, {n});
  if (tensor != nullptr) widen(tensor->dtype, tensor->bytes.data(), values.size(), values.data());
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
