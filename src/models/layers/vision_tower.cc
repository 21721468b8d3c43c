#include "models/layers/vision_tower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/integers.h"
#include "base/log.h"
#include "models/config_reader.h"
#include "models/layers/rope.h"
#include "ops/attention.h"

namespace glint {
namespace {

constexpr int kTileRows = 512;           // patches that pass through a block together
constexpr int kQueriesPerJob = 128;      // of one head
constexpr float kProjectionEps = 1e-5f;  // of the LayerNorm, which no config names
constexpr int kMaxWidth = 1 << 16;

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

void read_rope(ConfigReader& r, VisionDims& d) {
  d.rope_theta = 10'000;
  const Json* parameters = r.value("rope_parameters");
  if (parameters == nullptr) return;
  if (!parameters->is_object()) {
    r.fail(corrupt("config.json (vision_config): \"rope_parameters\" is not an object"));
    return;
  }
  ConfigReader rope(*parameters, "config.json (vision_config.rope_parameters)");
  const std::string type = rope.text_or("rope_type", "axial");
  if (type != "axial" && type != "default") {
    r.fail(unsupported(fmt::format(
        "config.json (vision_config): \"rope_type\" '{}' is not supported, only axial", type)));
  }
  d.rope_theta = rope.number_or("rope_theta", d.rope_theta, 1, 1e12);
  if (const Status status = rope.finish(); !status) r.fail(status.error());
}

// A piece of the rows of an image.
template <typename Work>
void for_tiles(int rows, int tile, const Work& work) {
  for (int first = 0; first < rows; first += tile) work(first, std::min(tile, rows - first));
}

class Tower {
 public:
  Tower(Exec& exec, Compute compute, const VisionDims& dims, const VisionWeights& weights,
        const ImagePatches& image)
      : exec_(exec),
        compute_(compute),
        d_(dims),
        w_(weights),
        image_(image),
        n_(image.height * image.width),
        pages_(ceil_div(n_, kAttendPage)),
        x_(size(n_) * hidden() * sizeof(float)),
        q_(size(n_) * hidden() * element_bytes()),
        k_(size(pages_ * kAttendPage) * hidden() * element_bytes()),
        v_(k_.size()) {
    make_angles();
    for (int head = 0; head < d_.num_heads; ++head) {
      for (int page = 0; page < pages_; ++page) {
        k_pages_.push_back(key(k_, head, page * kAttendPage));
        v_pages_.push_back(key(v_, head, page * kAttendPage));
      }
    }
  }

  void run(std::span<float> features) {
    embed();
    for (const VisionBlock& block : w_.blocks) {
      for_tiles(n_, kTileRows, [&](int first, int rows) { project(block, first, rows); });
      for_tiles(n_, kTileRows, [&](int first, int rows) { attend(block, first, rows); });
      for_tiles(n_, kTileRows, [&](int first, int rows) { mlp(block, first, rows); });
    }
    const int cells = kTileRows / d_.cell_patches();
    for_tiles(image_.tokens(), cells, [&](int first, int count) {
      merge(first, count, features.data() + size(first) * size(d_.out_hidden_size));
    });
  }

 private:
  std::size_t hidden() const { return size(d_.hidden_size); }
  std::size_t element_bytes() const {
    return compute_ == Compute::kF32 ? sizeof(float) : sizeof(bf16);
  }
  std::size_t head_bytes() const { return size(d_.head_dim()) * element_bytes(); }
  float* x(int row) { return x_.as<float>() + size(row) * hidden(); }
  // Keys and values lie head by head.
  std::byte* key(AlignedBuffer& keys, int head, int position) const {
    return keys.data() + (size(head) * size(pages_ * kAttendPage) + size(position)) * head_bytes();
  }
  const MatmulKernels& kernels_of(const Weight& weight) const {
    return matmul_kernels(exec_.kernels, weight.format(), compute_);
  }

  template <typename Work>
  void for_rows(int rows, const Work& work) {
    exec_.pool.run(size(ceil_div(rows, kRowBlock)), [&](std::size_t task, int) {
      const int first = static_cast<int>(task) * kRowBlock;
      for (int r = first; r < std::min(first + kRowBlock, rows); ++r) work(r);
    });
  }

  // y = from w^T + b, dense rows.
  void linear(const VisionLinear& w, const float* from, int rows, float* y) {
    const int k = static_cast<int>(w.weight.cols());
    linear(w, pack(exec_, kernels_of(w.weight), from, size(k), rows, k), y);
  }
  void linear(const VisionLinear& w, const Activations& from, float* y) {
    const int width = static_cast<int>(w.weight.rows());
    matmul(exec_, {from, &w.weight, y, size(width)});
    for_rows(from.rows,
             [&](int r) { exec_.kernels.add(w.bias.data(), width, y + size(r) * size(width)); });
  }
  void add_to_x(const float* y, int first, int rows) {
    for_rows(rows, [&](int r) {
      exec_.kernels.add(y + size(r) * hidden(), d_.hidden_size, x(first + r));
    });
  }

  void embed() {
    for_tiles(n_, kTileRows, [&](int first, int rows) {
      Workspace::Scope scope(exec_.workspace);
      linear(w_.patch_embed, image_.values.data() + size(first) * size(d_.patch_values()), rows,
             x(first));
    });
  }

  // cos and sin of every row or column for the quarter of a head's width that it turns.
  void make_angles() {
    const std::vector<float> frequencies = rope_frequencies(d_.rope_theta, d_.head_dim() / 2);
    for (int at = 0; at < std::max(image_.height, image_.width); ++at) {
      for (const float frequency : frequencies) {
        // The product is rounded to a float as in the reference.
        const auto angle = static_cast<double>(static_cast<float>(at) * frequency);
        cos_.push_back(static_cast<float>(std::cos(angle)));
        sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  void angles_of(int patch, float* cos, float* sin) const {
    const int cell = patch / d_.cell_patches(), inside = patch % d_.cell_patches();
    const int cells_a_row = image_.width / d_.merge;
    const int row = cell / cells_a_row * d_.merge + inside / d_.merge;
    const int col = cell % cells_a_row * d_.merge + inside % d_.merge;
    const std::size_t quarter = size(d_.head_dim() / 4);
    std::copy_n(cos_.data() + size(row) * quarter, quarter, cos);
    std::copy_n(sin_.data() + size(row) * quarter, quarter, sin);
    std::copy_n(cos_.data() + size(col) * quarter, quarter, cos + quarter);
    std::copy_n(sin_.data() + size(col) * quarter, quarter, sin + quarter);
  }

  void store(const float* from, std::byte* to) const {
    if (compute_ == Compute::kF32) {
      exec_.kernels.scale_to_f32(from, 1.0f, d_.head_dim(), reinterpret_cast<float*>(to));
    } else {
      exec_.kernels.scale_to_bf16(from, 1.0f, d_.head_dim(), reinterpret_cast<bf16*>(to));
    }
  }

  // Queries, keys and values of some patches.
  void project(const VisionBlock& block, int first, int rows) {
    Workspace::Scope scope(exec_.workspace);
    auto* qkv = exec_.workspace.array<float>(size(rows) * 3 * hidden());
    linear(block.qkv,
           rms_norm_pack(exec_, kernels_of(block.qkv.weight), x(first), hidden(),
                         block.norm1.data(), d_.block_eps, rows, d_.hidden_size),
           qkv);
    const std::size_t half = size(d_.head_dim() / 2);
    auto* angles = exec_.workspace.array<float>(size(rows) * 2 * half);
    for_rows(rows, [&](int r) {
      float* cos = angles + size(r) * 2 * half;
      float* sin = cos + half;
      angles_of(first + r, cos, sin);
      for (int head = 0; head < d_.num_heads; ++head) {
        float* q = qkv + size(r) * 3 * hidden() + size(head * d_.head_dim());
        float* k = q + hidden();
        for (const auto& [values, norm] : {std::pair(q, &block.q_norm), {k, &block.k_norm}}) {
          exec_.kernels.rms_norm(values, norm->data(), d_.head_dim(), d_.rms_norm_eps, values);
          exec_.kernels.rope_half(values, cos, sin, d_.head_dim());
        }
        store(q, q_.data() + (size(first + r) * size(d_.num_heads) + size(head)) * head_bytes());
        store(k, key(k_, head, first + r));
        store(k + hidden(), key(v_, head, first + r));
      }
    });
  }

  // x += proj(attention) of some patches, which see all of the image.
  void attend(const VisionBlock& block, int first, int rows) {
    Workspace::Scope scope(exec_.workspace);
    auto* out = exec_.workspace.array<float>(size(rows) * hidden());
    std::vector<AttentionJob> jobs;
    for (int head = 0; head < d_.num_heads; ++head) {
      for_tiles(rows, kQueriesPerJob, [&](int begin, int count) {
        AttentionJob job;
        job.q = q_.data() + (size(first + begin) * size(d_.num_heads) + size(head)) * head_bytes();
        // One query of many rows: they all see the same keys.
        job.q_row_stride = hidden();
        job.num_queries = 1;
        job.rows_per_query = count;
        job.start = n_ - 1;
        const auto of_head = [&](const std::vector<const std::byte*>& pages) {
          return std::span(pages).subspan(size(head) * size(pages_), size(pages_));
        };
        job.kv = {of_head(k_pages_), head_bytes(), of_head(v_pages_), head_bytes()};
        job.dk = job.dv = d_.head_dim();
        job.scale = 1.0f / std::sqrt(static_cast<float>(d_.head_dim()));
        job.out = out + size(begin) * hidden() + size(head * d_.head_dim());
        job.out_row_stride = hidden();
        jobs.push_back(job);
      });
    }
    glint::attend(exec_, CacheRows{.compute = compute_}.elements(), jobs);
    auto* y = exec_.workspace.array<float>(size(rows) * hidden());
    linear(block.proj, out, rows, y);
    add_to_x(y, first, rows);
  }

  void mlp(const VisionBlock& block, int first, int rows) {
    Workspace::Scope scope(exec_.workspace);
    const auto width = size(d_.intermediate_size);
    auto* gate = exec_.workspace.array<float>(size(rows) * width);
    auto* up = exec_.workspace.array<float>(size(rows) * width);
    const auto normed = [&](const VisionLinear& w, float* y) {
      linear(w,
             rms_norm_pack(exec_, kernels_of(w.weight), x(first), hidden(), block.norm2.data(),
                           d_.block_eps, rows, d_.hidden_size),
             y);
    };
    normed(block.gate_proj, gate);
    normed(block.up_proj, up);
    for_rows(rows, [&](int r) {
      exec_.kernels.silu_times(up + size(r) * width, d_.intermediate_size, d_.swiglu_limit,
                               gate + size(r) * width);
    });
    auto* y = exec_.workspace.array<float>(size(rows) * hidden());
    linear(block.down_proj, gate, rows, y);
    add_to_x(y, first, rows);
  }

  // LayerNorm, then GELU.
  void finish_projection(float* y) const {
    const std::size_t n = size(d_.out_hidden_size);
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < n; ++i) sum += y[i];
    const double mean = sum / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) squares += (y[i] - mean) * (y[i] - mean);
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + kProjectionEps);
    for (std::size_t i = 0; i < n; ++i) {
      const auto normed = static_cast<float>((y[i] - mean) * scale) * w_.post_projection_norm[i] +
                          w_.post_projection_norm_bias[i];
      y[i] = 0.5f * normed * (1.0f + std::erf(normed * 0.70710678f));
    }
  }

  // Vectors of cells [first, first + count) into y.
  void merge(int first, int count, float* y) {
    Workspace::Scope scope(exec_.workspace);
    const int patches = d_.cell_patches();
    auto* gathered = exec_.workspace.array<float>(size(count * patches) * hidden());
    auto* normed = exec_.workspace.array<float>(size(count * patches) * hidden());
    for_rows(count, [&](int cell) {
      for (int p = 0; p < patches; ++p) {
        float* row = normed + size(cell * patches + p) * hidden();
        exec_.kernels.rms_norm(x((first + cell) * patches + p), w_.post_layernorm.data(),
                               d_.hidden_size, d_.rms_norm_eps, row);
        // A convolution's inputs: channel by channel.
        float* to = gathered + size(cell * patches) * hidden() + size(p);
        for (std::size_t c = 0; c < hidden(); ++c) to[c * size(patches)] = row[c];
      }
    });
    const std::size_t out = size(d_.out_hidden_size);
    auto* cells = exec_.workspace.array<float>(size(count) * out);
    linear(w_.downsample, gathered, count, cells);
    auto* projected = exec_.workspace.array<float>(size(count) * out);
    matmul(exec_, {pack(exec_, kernels_of(w_.merger_proj), cells, out, count, d_.out_hidden_size),
                   &w_.merger_proj, projected, out});
    for_rows(count, [&](int cell) { finish_projection(projected + size(cell) * out); });
    const MlpGroup all{.mlp = &w_.merger, .rows = {}};
    gated_mlp(exec_, compute_, projected, count, d_.out_hidden_size, std::span(&all, 1), y);
  }

  Exec& exec_;
  const Compute compute_;
  const VisionDims& d_;
  const VisionWeights& w_;
  const ImagePatches& image_;
  const int n_;      // patches
  const int pages_;  // of keys
  // Of the whole image: too much for the workspace, which never shrinks.
  AlignedBuffer x_;                                  // [n, hidden]
  AlignedBuffer q_;                                  // [n, heads, head_dim]
  AlignedBuffer k_, v_;                              // [heads, pages * kAttendPage, head_dim]
  std::vector<const std::byte*> k_pages_, v_pages_;  // [heads, pages]
  std::vector<float> cos_, sin_;                     // [rows or columns, head_dim / 4]
};

VisionLinear bind_linear(TensorBinder& b, const std::string& name, int rows, int cols) {
  return {b.matrix(name + ".weight", rows, cols, MatrixUse::kKept), b.vector(name + ".bias", rows)};
}

}  // namespace

Result<VisionDims> read_vision(const Json& vision_config, int hidden_size) {
  ConfigReader r(vision_config, "config.json (vision_config)");
  VisionDims d;
  d.depth = r.integer("depth", 1, 1024);
  d.hidden_size = r.integer("hidden_size", 4, kMaxWidth);
  d.intermediate_size = r.integer("intermediate_size", 1, kMaxWidth);
  d.num_heads = r.integer("num_heads", 1, 1024);
  d.patch_size = r.integer("patch_size", 1, 128);
  d.temporal_patch_size = r.integer("temporal_patch_size", 1, 16);
  d.merge = r.integer("spatial_merge_size", 1, 8);
  d.channels = r.integer_or("in_channels", 3, 3, 3);
  d.out_hidden_size = r.integer("out_hidden_size", 1, kMaxWidth);
  d.projection_intermediate_size = r.integer("projection_intermediate_size", 1, kMaxWidth);
  d.rms_norm_eps = static_cast<float>(r.number("rms_norm_eps", 0, 1));
  d.swiglu_limit = static_cast<float>(r.number("swiglu_limit", 1e-3, 1e9));
  r.expect("attention_bias", Json(true), "the tower's projections have biases");
  r.expect("hidden_act", Json("silu"), "the tower's activation is SiLU");
  read_rope(r, d);
  r.ignore({"image_size"});
  r.ignore_common();
  GLINT_TRY_VOID(r.finish());
  if (d.hidden_size % d.num_heads != 0 || d.head_dim() % 4 != 0) {
    return corrupt(fmt::format(
        "config.json (vision_config): \"hidden_size\" {} is not {} heads of a multiple of 4 values",
        d.hidden_size, d.num_heads));
  }
  if (d.out_hidden_size != hidden_size) {
    return corrupt(fmt::format(
        "config.json (vision_config): \"out_hidden_size\" is {}, and the language model's "
        "\"hidden_size\" {}",
        d.out_hidden_size, hidden_size));
  }
  return d;
}

VisionWeights bind_vision(TensorBinder& b, const VisionDims& d) {
  const std::string p(kVisionPrefix);
  VisionWeights w;
  w.patch_embed.weight =
      b.flat_matrix(p + "patch_embed.proj.weight",
                    {d.hidden_size, d.channels, d.temporal_patch_size, d.patch_size, d.patch_size});
  w.patch_embed.bias = b.vector(p + "patch_embed.proj.bias", d.hidden_size);
  for (int i = 0; i < d.depth && !b.hopeless(); ++i) {
    const std::string prefix = fmt::format("{}blocks.{}.", p, i);
    VisionBlock block;
    block.norm1 = b.vector(prefix + "norm1.weight", d.hidden_size);
    block.norm2 = b.vector(prefix + "norm2.weight", d.hidden_size);
    block.qkv = bind_linear(b, prefix + "attn.qkv", 3 * d.hidden_size, d.hidden_size);
    block.proj = bind_linear(b, prefix + "attn.proj", d.hidden_size, d.hidden_size);
    block.q_norm = b.vector(prefix + "attn.q_norm.weight", d.head_dim());
    block.k_norm = b.vector(prefix + "attn.k_norm.weight", d.head_dim());
    block.gate_proj = bind_linear(b, prefix + "mlp.gate_proj", d.intermediate_size, d.hidden_size);
    block.up_proj = bind_linear(b, prefix + "mlp.up_proj", d.intermediate_size, d.hidden_size);
    block.down_proj = bind_linear(b, prefix + "mlp.down_proj", d.hidden_size, d.intermediate_size);
    w.blocks.push_back(std::move(block));
  }
  w.post_layernorm = b.vector(p + "post_layernorm.weight", d.hidden_size);
  w.downsample.weight =
      b.flat_matrix(p + "downsample.weight", {d.out_hidden_size, d.hidden_size, d.merge, d.merge});
  w.downsample.bias = b.vector(p + "downsample.bias", d.out_hidden_size);
  const int out = d.out_hidden_size, wide = d.projection_intermediate_size;
  w.merger_proj = b.matrix(p + "merger.proj.weight", out, out, MatrixUse::kKept);
  w.post_projection_norm = b.vector(p + "merger.post_projection_norm.weight", out);
  w.post_projection_norm_bias = b.vector(p + "merger.post_projection_norm.bias", out);
  w.merger.gate = b.matrix(p + "merger.gate_proj.weight", wide, out, MatrixUse::kKept);
  w.merger.up = b.matrix(p + "merger.up_proj.weight", wide, out, MatrixUse::kKept);
  w.merger.down = b.matrix(p + "merger.down_proj.weight", out, wide, MatrixUse::kKept);
  w.merger.limit = d.swiglu_limit;
  return w;
}

ImageInput describe_vision(const VisionDims& d, const Checkpoint& checkpoint) {
  ImageInput input;
  input.patch_size = d.patch_size;
  input.temporal_patch_size = d.temporal_patch_size;
  input.merge = d.merge;
  input.channels = d.channels;
  input.hidden_size = d.hidden_size;
  input.intermediate_size = d.intermediate_size;
  const auto& all = checkpoint.tensors();
  for (auto at = all.lower_bound(kVisionPrefix);
       at != all.end() && at->first.starts_with(kVisionPrefix); ++at) {
    input.weight_bytes += at->second.bytes.size();
    if (place_of(at->first).role == TensorRole::kPart) continue;
    std::uint64_t values = 1;
    for (const std::int64_t side : at->second.shape) values *= static_cast<std::uint64_t>(side);
    input.parameters += values;
  }
  return input;
}

void log_vision_eps(const VisionDims& dims) {
  if (dims.block_eps == dims.rms_norm_eps) return;
  log_info(fmt::format(
      "vision tower: norm1 and norm2 use the eps {} that it was trained with, not the config's {}",
      dims.block_eps, dims.rms_norm_eps));
}

void encode_image(Exec& exec, Compute compute, const VisionDims& dims, const VisionWeights& weights,
                  const ImagePatches& image, std::span<float> features) {
  GLINT_CHECK(image.merge == dims.merge && image.height > 0 && image.height % dims.merge == 0 &&
              image.width > 0 && image.width % dims.merge == 0);
  GLINT_CHECK(image.values.size() ==
              size(image.height) * size(image.width) * size(dims.patch_values()));
  GLINT_CHECK(features.size() == size(image.tokens()) * size(dims.out_hidden_size));
  Tower(exec, compute, dims, weights, image).run(features);
}

}  // namespace glint
