#include "tools/quantizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "checkpoint/gguf.h"
#include "checkpoint/quant_config.h"
#include "checkpoint/stored_matrix.h"
#include "models/registry.h"
#include "tensor/weight_rounding.h"
#include "tools/flags.h"
#include "tools/safetensors_writer.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlock = 128;  // of kFp8Block, both ways
constexpr std::size_t kCopyBytes = std::size_t{16} << 20;
constexpr std::uint64_t kSmallFile = std::uint64_t{64} << 20;
constexpr float kE4m3Most = 448.0f;

constexpr std::string_view kProjections[] = {
    "q_proj",    "k_proj",  "v_proj",   "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa",
    "gate_proj", "up_proj", "down_proj"};

// Modules that are kept, as compressed-tensors writes lists of them.
constexpr std::string_view kIgnored[] = {"lm_head",          "re:.*embed_tokens$",
                                         "re:.*mlp\\.gate$", "re:.*kv_b_proj$",
                                         "re:.*eh_proj$",    "re:.*shared_head\\.head$"};

struct TypeTraits {
  QuantizeType type;
  std::string_view name;
  int bits;           // of integers; 0: e4m3
  std::size_t group;  // values of a row that share a scale; 0: the whole row
};
constexpr TypeTraits kTypes[] = {{QuantizeType::kW8A16, "w8a16", 8, 0},
                                 {QuantizeType::kW4A16G32, "w4a16-g32", 4, 32},
                                 {QuantizeType::kW4A16G128, "w4a16-g128", 4, 128},
                                 {QuantizeType::kFp8Block, "fp8-block", 0, kBlock}};

const TypeTraits& traits_of(QuantizeType type) {
  for (const TypeTraits& traits : kTypes) {
    if (traits.type == type) return traits;
  }
  GLINT_CHECK(false);
}

std::size_t ceil_div(std::size_t a, std::size_t b) {
  return (a + b - 1) / b;
}

// "model.layers.3.mlp.experts.7.up_proj.weight" -> "experts.up_proj"; empty where the tensor is
// kept.
std::string kind_of(const TensorRef& tensor) {
  constexpr std::string_view kSuffix = ".weight";
  std::string_view stem = tensor.name;
  if (!stem.ends_with(kSuffix) || tensor.shape.size() != 2) return {};
  stem.remove_suffix(kSuffix.size());
  const std::size_t dot = stem.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view leaf = stem.substr(dot + 1);
  if (std::ranges::find(kProjections, leaf) == std::end(kProjections)) return {};
  const bool is_float =
      tensor.dtype == DType::kBf16 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32;
  if (!is_float || tensor.shape[0] == 0 || tensor.shape[1] == 0) return {};
  for (const std::string_view owner : {"shared_experts", "experts"}) {
    if (stem.find(fmt::format(".{}.", owner)) != std::string_view::npos)
      return fmt::format("{}.{}", owner, leaf);
  }
  return std::string(leaf);
}

// Other engines want whole groups and whole blocks along a row.
bool fits(const TypeTraits& type, std::size_t cols) {
  if (type.bits == 0) return cols % kBlock == 0;
  const std::size_t per_word = 32 / static_cast<std::size_t>(type.bits);
  return cols % per_word == 0 && (type.group == 0 || cols % type.group == 0);
}

// ---- rounding

// A matrix on its way: `codes` and `scales` as they are stored.
struct Rounded {
  std::vector<std::byte> codes, scales;
};

// Sums of squares: of what rounding loses, and of all there was.
struct Errors {
  double lost = 0, all = 0;

  void count(float value, float rounded) {
    const double gone = static_cast<double>(value) - static_cast<double>(rounded);
    lost += gone * gone;
    all += static_cast<double>(value) * static_cast<double>(value);
  }
  void add(const Errors& other) {
    lost += other.lost;
    all += other.all;
  }
};

// Rounds rows [first, last) of a matrix into `out`; first is a multiple of kBlock for fp8.
class Rounding {
 public:
  Rounding(const TypeTraits& type, const StoredMatrix& source)
      : type_(type), source_(source), rows_(source.rows()), cols_(source.cols()) {
    out_.codes.resize(type.bits == 4 ? rows_ * cols_ / 2 : rows_ * cols_);
    if (type.bits == 0) {
      out_.scales.resize(ceil_div(rows_, kBlock) * ceil_div(cols_, kBlock) * sizeof(float));
    } else {
      out_.scales.resize(rows_ * groups() * sizeof(bf16));
    }
  }

  std::size_t tasks() const { return ceil_div(rows_, kBlock); }
  Rounded take() { return std::move(out_); }

  // False where a weight is not finite.
  bool run(std::size_t task, Errors& errors) {
    const std::size_t first = task * kBlock, last = std::min(rows_, first + kBlock);
    std::vector<float> values((last - first) * cols_);
    source_.decode_rows(first, last - first, values.data());
    if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) return false;
    if (type_.bits == 0) {
      round_blocks(first, values, errors);
    } else {
      for (std::size_t row = first; row < last; ++row)
        round_row(row, std::span(values).subspan((row - first) * cols_, cols_), errors);
    }
    return true;
  }

 private:
  std::size_t group() const { return type_.group == 0 ? cols_ : type_.group; }
  std::size_t groups() const { return cols_ / group(); }

  void round_row(std::size_t row, std::span<const float> values, Errors& errors) {
    std::vector<std::int8_t> codes(cols_);
    for (std::size_t g = 0; g < groups(); ++g) {
      const auto weights = values.subspan(g * group(), group());
      const auto whole = std::span(codes).subspan(g * group(), group());
      const float scale = round_to_integers(weights, type_.bits, whole);
      const bf16 stored = bf16::from_float(scale);
      std::memcpy(out_.scales.data() + (row * groups() + g) * sizeof stored, &stored,
                  sizeof stored);
      for (std::size_t i = 0; i < weights.size(); ++i)
        errors.count(weights[i], scale * static_cast<float>(whole[i]));
    }
    // Unsigned, from the lowest bits of a word upwards.
    if (type_.bits == 8) {
      for (std::size_t i = 0; i < cols_; ++i)
        out_.codes[row * cols_ + i] = static_cast<std::byte>(codes[i] + 128);
      return;
    }
    for (std::size_t i = 0; i < cols_; i += 2) {
      out_.codes[(row * cols_ + i) / 2] =
          static_cast<std::byte>((codes[i] + 8) | (codes[i + 1] + 8) << 4);
    }
  }

  void round_blocks(std::size_t first, std::span<const float> values, Errors& errors) {
    const std::size_t rows = values.size() / cols_;
    const std::size_t across = ceil_div(cols_, kBlock);
    for (std::size_t block = 0; block < across; ++block) {
      const std::size_t begin = block * kBlock, end = std::min(cols_, begin + kBlock);
      float largest = 0;
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = begin; c < end; ++c)
          largest = std::max(largest, std::fabs(values[r * cols_ + c]));
      }
      const float scale = largest > 0 ? std::max(largest / kE4m3Most, 0x1p-120f) : 1.0f;
      std::memcpy(out_.scales.data() + (first / kBlock * across + block) * sizeof scale, &scale,
                  sizeof scale);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = begin; c < end; ++c) {
          const float value = values[r * cols_ + c];
          const std::uint8_t code = e4m3_from_float(value / scale);
          out_.codes[(first + r) * cols_ + c] = static_cast<std::byte>(code);
          errors.count(value, e4m3_to_float(code) * scale);
        }
      }
    }
  }

  const TypeTraits& type_;
  const StoredMatrix& source_;
  std::size_t rows_, cols_;
  Rounded out_;
};

// ---- what goes where

// A tensor of the source and what is written of it.
struct Item {
  const TensorRef* tensor;
  std::string kind;  // empty: copied
  std::vector<SafetensorsWriter::Tensor> written;
  std::uint64_t bytes = 0;  // of all that is written
  Errors errors = {};       // of rounding
};

std::uint64_t bytes_of(const SafetensorsWriter::Tensor& tensor) {
  std::uint64_t bytes = dtype_bytes(tensor.dtype);
  for (const std::int64_t dim : tensor.shape) bytes *= static_cast<std::uint64_t>(dim);
  return bytes;
}

Item make_item(const TypeTraits& type, const TensorRef& tensor, std::string kind) {
  Item item{&tensor, std::move(kind), {}, 0};
  if (item.kind.empty()) {
    item.written = {{tensor.name, tensor.dtype, tensor.shape}};
  } else {
    const std::int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    const auto across = [cols](std::size_t group) {
      return static_cast<std::int64_t>(ceil_div(static_cast<std::size_t>(cols), group));
    };
    const std::string& name = tensor.name;
    if (type.bits == 0) {
      const auto down = static_cast<std::int64_t>(ceil_div(static_cast<std::size_t>(rows), kBlock));
      item.written = {{name, DType::kF8E4M3, tensor.shape},
                      {name + "_scale", DType::kF32, {down, across(kBlock)}}};
    } else {
      const std::int64_t groups = type.group == 0 ? 1 : across(type.group);
      item.written = {{name + "_packed", DType::kI32, {rows, cols * type.bits / 32}},
                      {name + "_scale", DType::kBf16, {rows, groups}},
                      {name + "_shape", DType::kI64, {2}}};
    }
  }
  for (const SafetensorsWriter::Tensor& written : item.written) item.bytes += bytes_of(written);
  return item;
}

using Shard = std::vector<Item>;

std::vector<Shard> plan_shards(const TypeTraits& type, const Checkpoint& source,
                               std::uint64_t shard_bytes, QuantizeReport& report) {
  std::vector<Shard> shards(1);
  std::uint64_t filled = 0;
  for (const auto& [name, tensor] : source.tensors()) {
    std::string kind = kind_of(tensor);
    if (!kind.empty() && !fits(type, static_cast<std::size_t>(tensor.shape[1]))) {
      report.kept_matrices.push_back(name.substr(0, name.rfind('.')));
      kind.clear();
    }
    Item item = make_item(type, tensor, std::move(kind));
    report.bytes_before += tensor.bytes.size();
    report.bytes_after += item.bytes;
    if (filled > 0 && filled + item.bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += item.bytes;
    shards.back().push_back(std::move(item));
  }
  report.shards = static_cast<int>(shards.size());
  return shards;
}

// What of `source` is lost in `matrix`.
Errors distance(const StoredMatrix& source, const StoredMatrix& matrix, ThreadPool& pool) {
  const std::size_t rows = matrix.rows(), cols = matrix.cols();
  std::vector<Errors> parts(ceil_div(rows, kBlock));
  pool.run(parts.size(), [&](std::size_t task, int) {
    const std::size_t first = task * kBlock, count = std::min(kBlock, rows - first);
    std::vector<float> values(count * cols), rounded(count * cols);
    source.decode_rows(first, count, values.data());
    matrix.decode_rows(first, count, rounded.data());
    for (std::size_t i = 0; i < values.size(); ++i)
      parts[task].count(values[i], rounded[i] * matrix.factor());
  });
  Errors sum;
  for (const Errors& part : parts) sum.add(part);
  return sum;
}

// ---- writing

class Run {
 public:
  Run(const Checkpoint& source, const fs::path& folder, const QuantizeOptions& options)
      : source_(source), folder_(folder), options_(options), type_(traits_of(options.type)) {}

  Result<QuantizeReport> run();

 private:
  std::string shard_name(std::size_t index) const;
  Status write_shard(Shard& shard, const fs::path& path);
  Status copy(const Item& item, SafetensorsWriter& writer);
  Status round(Item& item, SafetensorsWriter& writer);
  void advance(const TensorRef& tensor, std::size_t offset, std::size_t nbytes);
  Status write_index();
  Status copy_other_files();
  Status write_config();
  Status read_back();

  const Checkpoint& source_;
  const fs::path& folder_;
  const QuantizeOptions& options_;
  const TypeTraits& type_;
  QuantizeReport report_;
  std::vector<Shard> shards_;
  std::map<std::string, std::pair<QuantizedKind, Errors>> kinds_;
  std::uint64_t done_ = 0;
};

std::string Run::shard_name(std::size_t index) const {
  if (shards_.size() == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, shards_.size());
}

void Run::advance(const TensorRef& tensor, std::size_t offset, std::size_t nbytes) {
  const auto start = static_cast<std::size_t>(tensor.bytes.data() - tensor.file->bytes().data());
  tensor.file->release(start + offset, nbytes);
  done_ += nbytes;
  if (options_.progress) options_.progress(done_, report_.bytes_before);
}

Status Run::copy(const Item& item, SafetensorsWriter& writer) {
  const std::span<const std::byte> bytes = item.tensor->bytes;
  for (std::size_t at = 0; at < bytes.size(); at += kCopyBytes) {
    const auto piece = bytes.subspan(at, std::min(kCopyBytes, bytes.size() - at));
    GLINT_TRY_VOID(writer.write(item.tensor->name, at, piece));
    advance(*item.tensor, at, piece.size());
  }
  return {};
}

Status Run::round(Item& item, SafetensorsWriter& writer) {
  const TensorRef& tensor = *item.tensor;
  GLINT_TRY(const auto source, find_matrix(source_, QuantConfig(), tensor.name));
  Rounding rounding(type_, *source);
  std::vector<Errors> errors(rounding.tasks());
  std::vector<char> finite(rounding.tasks());
  options_.pool->run(rounding.tasks(), [&](std::size_t task, int) {
    finite[task] = rounding.run(task, errors[task]) ? 1 : 0;
  });
  if (std::ranges::find(finite, char{0}) != finite.end()) {
    return corrupt(
        fmt::format("tensor {} in {} holds values that are not finite; fetch the "
                    "checkpoint again",
                    tensor.name, tensor.file->path().string()));
  }
  auto& [kind, sums] = kinds_[item.kind];
  ++kind.matrices;
  kind.bytes_before += tensor.bytes.size();
  kind.bytes_after += item.bytes;
  for (const Errors& part : errors) item.errors.add(part);
  sums.add(item.errors);
  const Rounded rounded = rounding.take();
  GLINT_TRY_VOID(writer.write(item.written[0].name, 0, rounded.codes));
  GLINT_TRY_VOID(writer.write(item.written[1].name, 0, rounded.scales));
  if (item.written.size() > 2) {
    const std::array<std::int64_t, 2> shape = {tensor.shape[0], tensor.shape[1]};
    GLINT_TRY_VOID(writer.write(item.written[2].name, 0, std::as_bytes(std::span(shape))));
  }
  advance(tensor, 0, tensor.bytes.size());
  return {};
}

Status Run::write_shard(Shard& shard, const fs::path& path) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const Item& item : shard)
    tensors.insert(tensors.end(), item.written.begin(), item.written.end());
  GLINT_TRY(auto writer, SafetensorsWriter::create(path, tensors));
  for (Item& item : shard)
    GLINT_TRY_VOID(item.kind.empty() ? copy(item, *writer) : round(item, *writer));
  return writer->finish();
}

Status Run::write_index() {
  if (shards_.size() == 1) return {};
  Json::Object files;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    for (const Item& item : shards_[i]) {
      for (const SafetensorsWriter::Tensor& tensor : item.written)
        files.emplace_back(tensor.name, shard_name(i));
    }
  }
  std::ranges::sort(files, {}, &Json::Member::first);
  Json metadata;
  metadata.set("total_size", report_.bytes_after);
  Json index;
  index.set("metadata", std::move(metadata));
  index.set("weight_map", Json(std::move(files)));
  return write_file_atomically(folder_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

// The tokenizer, the template and what else is small; never code or other weights.
Status Run::copy_other_files() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(source_.folder(), error)) {
    const fs::path name = entry.path().filename();
    const bool wanted = name.extension() == ".json" || name.extension() == ".jinja" ||
                        name.extension() == ".txt" || name.extension() == ".md" ||
                        name.extension() == ".model" || name == "LICENSE";
    const bool replaced = name == "config.json" || name == "hf_quant_config.json" ||
                          name.string().ends_with(".index.json");
    std::error_code ignored;
    if (!wanted || replaced || !entry.is_regular_file(ignored) ||
        entry.file_size(ignored) > kSmallFile)
      continue;
    std::error_code failed;
    fs::copy_file(entry.path(), folder_ / name, failed);
    if (failed) return io_error(fmt::format("{}: {}", (folder_ / name).string(), failed.message()));
  }
  if (error)
    return io_error(fmt::format("cannot list {}: {}", source_.folder().string(), error.message()));
  return {};
}

Json arguments(const TypeTraits& type, bool of_weights) {
  const bool is_float = type.bits == 0;
  Json json;
  json.set("num_bits", is_float ? 8 : type.bits);
  json.set("type", is_float ? "float" : "int");
  json.set("symmetric", true);
  json.set("dynamic", !of_weights);
  const bool blocks = is_float && of_weights;
  json.set("strategy", blocks ? "block" : type.group == 0 ? "channel" : "group");
  json.set("group_size",
           blocks || type.group == 0 ? Json() : Json(static_cast<std::int64_t>(type.group)));
  json.set("block_structure", blocks ? Json(Json::Array{static_cast<std::int64_t>(kBlock),
                                                        static_cast<std::int64_t>(kBlock)})
                                     : Json());
  json.set("actorder", Json());
  json.set("observer", of_weights ? Json("minmax") : Json());
  json.set("observer_kwargs", Json(Json::Object{}));
  return json;
}

Status Run::write_config() {
  const char* format = type_.bits == 0 ? "float-quantized" : "pack-quantized";
  Json group;
  group.set("targets", Json(Json::Array{"Linear"}));
  group.set("weights", arguments(type_, true));
  group.set("input_activations", type_.bits == 0 ? arguments(type_, false) : Json());
  group.set("output_activations", Json());
  group.set("format", format);
  Json groups;
  groups.set("group_0", std::move(group));
  Json ignored(Json::Array{});
  for (const std::string_view name : kIgnored) ignored.push_back(name);
  for (const std::string& name : report_.kept_matrices) ignored.push_back(name);
  Json quantization;
  quantization.set("quant_method", "compressed-tensors");
  quantization.set("format", format);
  quantization.set("quantization_status", "compressed");
  quantization.set("global_compression_ratio", Json());
  quantization.set("kv_cache_scheme", Json());
  quantization.set("config_groups", std::move(groups));
  quantization.set("ignore", std::move(ignored));
  Json config = source_.config();
  config.set("quantization_config", std::move(quantization));
  return write_file_atomically(folder_ / "config.json", config.dump(2) + "\n");
}

// Every matrix by way of the reader that models use: its distance from the source must be what
// rounding left.
Status Run::read_back() {
  GLINT_TRY(const auto copy, Checkpoint::open(folder_));
  GLINT_TRY_VOID(check_model(*copy));
  GLINT_TRY(const QuantConfig config, read_quant_config(*copy));
  for (const Shard& shard : shards_) {
    for (const Item& item : shard) {
      if (item.kind.empty()) continue;
      GLINT_TRY(const auto source, find_matrix(source_, QuantConfig(), item.tensor->name));
      GLINT_TRY(const auto matrix, find_matrix(*copy, config, item.tensor->name));
      const Errors errors = distance(*source, *matrix, *options_.pool);
      const double rounding = std::abs(errors.lost - item.errors.lost);
      if (!(rounding <= 1e-4 * item.errors.lost + 1e-9 * item.errors.all)) {
        return Error{ErrorCode::kInternal,
                     fmt::format("{} in {} is not what was written; is the disk sound?",
                                 item.tensor->name, folder_.string())};
      }
    }
  }
  return {};
}

Result<QuantizeReport> Run::run() {
  shards_ = plan_shards(type_, source_, options_.shard_bytes, report_);
  const bool any = std::ranges::any_of(shards_, [](const Shard& shard) {
    return std::ranges::any_of(shard, [](const Item& item) { return !item.kind.empty(); });
  });
  if (!any) {
    return unsupported(fmt::format("{} holds no matrix of float weights that {} fits",
                                   source_.folder().string(), type_.name));
  }
  std::error_code unknown;
  const fs::space_info space = fs::space(folder_, unknown);
  if (!unknown && space.available < report_.bytes_after) {
    return io_error(fmt::format("{} needs {}, but its disk has {} left", folder_.string(),
                                format_bytes(static_cast<double>(report_.bytes_after)),
                                format_bytes(static_cast<double>(space.available))));
  }
  for (std::size_t i = 0; i < shards_.size(); ++i)
    GLINT_TRY_VOID(write_shard(shards_[i], folder_ / shard_name(i)));
  GLINT_TRY_VOID(write_index());
  GLINT_TRY_VOID(copy_other_files());
  GLINT_TRY_VOID(write_config());
  for (auto& [name, entry] : kinds_) {
    entry.first.name = name;
    if (entry.second.all > 0) entry.first.error = std::sqrt(entry.second.lost / entry.second.all);
    report_.kinds.push_back(std::move(entry.first));
  }
  GLINT_TRY_VOID(read_back());
  return std::move(report_);
}

Status prepare_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    return invalid_argument(fmt::format("{} cannot be made: {}", folder.string(), error.message()));
  if (!fs::is_empty(folder, error)) {
    return invalid_argument(fmt::format(
        "{} is not empty; give a folder that is, or that does not exist", folder.string()));
  }
  return {};
}

}  // namespace

std::optional<QuantizeType> quantize_type_from_name(std::string_view name) {
  if (name == "q8") return QuantizeType::kW8A16;
  if (name == "q4") return QuantizeType::kW4A16G32;
  for (const TypeTraits& traits : kTypes) {
    if (traits.name == name) return traits.type;
  }
  return std::nullopt;
}

const std::vector<std::string>& quantize_type_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const TypeTraits& traits : kTypes) list.emplace_back(traits.name);
    list.emplace_back("q8");
    list.emplace_back("q4");
    return list;
  }();
  return names;
}

Result<QuantizeReport> quantize_checkpoint(const Checkpoint& source, const fs::path& folder,
                                           const QuantizeOptions& options) {
  GLINT_CHECK(options.pool != nullptr && options.shard_bytes > 0);
  if (source.gguf() != nullptr) {
    return unsupported(fmt::format(
        "{} is a GGUF file; only safetensors checkpoints of BF16, F16 or F32 weights are quantised",
        source.gguf()->path().string()));
  }
  const Json* scheme = source.config().find("quantization_config");
  if (scheme != nullptr && !scheme->is_null()) {
    return unsupported(fmt::format(
        "{} is quantised already (\"quantization_config\" in config.json); start from the original "
        "checkpoint: rounding twice loses twice",
        source.folder().string()));
  }
  GLINT_TRY_VOID(check_model(source));
  GLINT_TRY_VOID(prepare_folder(folder));
  return Run(source, folder, options).run();
}

}  // namespace glint
