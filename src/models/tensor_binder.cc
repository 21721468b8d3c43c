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

TensorBinder::TensorBinder(const Checkpoint& checkpoint, std::function<void(std::uint64_t)> progress)
    : checkpoint_(checkpoint), progress_(std::move(progress)) {}

void TensorBinder::problem(std::string text, bool is_unsupported) {
  ++num_problems_;
  unsupported_ = unsupported_ || is_unsupported;
  if (problems_.size() < kMaxListed) problems_.push_back(std::move(text));
}

const TensorRef* TensorBinder::take(const std::string& name, std::initializer_list<std::int64_t> shape) {
  used_.insert(name);
  const TensorRef* tensor = checkpoint_.find(name);
  if (tensor == nullptr) {
    problem(fmt::format("tensor {} is missing: {}", name, checkpoint_.why_missing(name)), false);
    return nullptr;
  }
  const std::string file = tensor->file == nullptr ? "?" : tensor->file->path().filename().string();
  if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
    problem(fmt::format("tensor {} in {} has shape [{}] where config.json asks for [{}]", name, file,
                        fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")),
            false);
    return nullptr;
  }
  if (tensor->dtype != DType::kBf16 && tensor->dtype != DType::kF32 && tensor->dtype != DType::kF16) {
    problem(fmt::format("tensor {} in {} is {}: this version computes BF16, F16 and F32 weights only", name, file,
                        dtype_name(tensor->dtype)),
            true);
    return nullptr;
  }
  bound_bytes_ += tensor->bytes.size();
  if (progress_) progress_(bound_bytes_);
  return tensor;
}

Weight TensorBinder::matrix(const std::string& name, int rows, int cols) {
  const TensorRef* tensor = take(name, {rows, cols});
  if (tensor == nullptr) return {};
  const auto r = static_cast<std::size_t>(rows), c = static_cast<std::size_t>(cols);
  if (tensor->dtype == DType::kF16) {
    if (!widened_) log_info("float16 weights are widened to float32 in memory");
    widened_ = true;
    AlignedBuffer wide(r * c * sizeof(float));
    widen(tensor->dtype, tensor->bytes.data(), r * c, wide.as<float>());
    return Weight::own(QuantFormat::kF32, r, c, std::move(wide));
  }
  const QuantFormat format = tensor->dtype == DType::kBf16 ? QuantFormat::kBf16 : QuantFormat::kF32;
  if (reinterpret_cast<std::uintptr_t>(tensor->bytes.data()) % dtype_bytes(tensor->dtype) != 0) {
    AlignedBuffer copy(tensor->bytes.size());  // the format does not promise alignment; kernels need an element's
    std::memcpy(copy.data(), tensor->bytes.data(), tensor->bytes.size());
    return Weight::own(format, r, c, std::move(copy));
  }
  return Weight::borrow(format, r, c, tensor->bytes.data(), tensor->file);
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
      listed.push_back(fmt::format("tensor {} in {} is not part of this architecture", name,
                                   tensor.file == nullptr ? "?" : tensor.file->path().filename().string()));
    }
  }
  if (total == 0) return {};
  std::string text = fmt::format("{}: the tensors do not fit config.json:", checkpoint_.folder().string());
  for (const std::string& line : listed) text += "\n  " + line;
  if (total > listed.size()) text += fmt::format("\n  ... and {} more", total - listed.size());
  text += "\nDownload the checkpoint again, or correct config.json.";
  return Error{unsupported_ ? ErrorCode::kUnsupported : ErrorCode::kCorrupt, std::move(text)};
}

}  // namespace glint
