// Where the weights of mla.h come from.
#include <utility>

#include "models/layers/mla.h"

namespace glint {
namespace {

// kv_b comes whole, or split in two with its key half transposed (GGUF files).
void bind_kv_b(TensorBinder& b, const std::string& prefix, const MlaDims& d, MlaWeights& w) {
  const int heads = d.num_heads, c = d.kv_lora_rank, nope = d.qk_nope_head_dim, v = d.v_head_dim;
  if (b.has(prefix + "k_b_proj.weight")) {
    w.k_b_heads = b.head_matrices(prefix + "k_b_proj.weight", {heads, c, nope}, heads, c, 0, c);
    w.v_b_heads = b.head_matrices(prefix + "v_b_proj.weight", {heads, v, c}, heads, v, 0, v);
    return;
  }
  const std::string name = prefix + "kv_b_proj.weight";
  const int both = nope + v;
  w.k_up_heads = b.head_matrices(name, {heads * both, c}, heads, both, 0, nope);
  w.v_b_heads = b.head_matrices(name, {heads * both, c}, heads, both, nope, v);
}

}  // namespace

MlaWeights bind_mla(TensorBinder& b, const std::string& prefix, const MlaDims& d) {
  const auto matrix = [&](const std::string& name, int rows, int cols) {
    return b.matrix(prefix + name, rows, cols, MatrixUse::kAttention);
  };
  MlaWeights w;
  w.q_a_proj = matrix("q_a_proj.weight", d.q_lora_rank, d.hidden_size);
  w.q_a_layernorm = b.vector(prefix + "q_a_layernorm.weight", d.q_lora_rank);
  w.q_b_proj = matrix("q_b_proj.weight", d.num_heads * d.qk_head_dim(), d.q_lora_rank);
  w.kv_a_proj_with_mqa = matrix("kv_a_proj_with_mqa.weight", d.cache_width(), d.hidden_size);
  w.kv_a_layernorm = b.vector(prefix + "kv_a_layernorm.weight", d.kv_lora_rank);
  bind_kv_b(b, prefix, d, w);
  w.o_proj = matrix("o_proj.weight", d.hidden_size, d.num_heads * d.v_head_dim);
  return w;
}

std::uint64_t mla_parameters(const MlaDims& m) {
  const auto u = [](int n) { return static_cast<std::uint64_t>(n); };
  const std::uint64_t d = u(m.hidden_size), heads = u(m.num_heads);
  return u(m.q_lora_rank) * (d + 1) + heads * u(m.qk_head_dim()) * u(m.q_lora_rank) +
         u(m.cache_width()) * d + u(m.kv_lora_rank) +
         heads * u(m.qk_nope_head_dim + m.v_head_dim) * u(m.kv_lora_rank) +
         d * heads * u(m.v_head_dim);
}

void complete_kv_b(MlaWeights& weights, Compute compute) {
  const bool up_given = weights.k_b_heads.empty();
  const std::vector<Weight>& given = up_given ? weights.k_up_heads : weights.k_b_heads;
  std::vector<Weight>& made = up_given ? weights.k_b_heads : weights.k_up_heads;
  for (const Weight& from : given) {
    const std::size_t rows = from.rows(), cols = from.cols();
    const bool wide = from.format() == QuantFormat::kF32 ||
                      (from.format() != QuantFormat::kBf16 && compute == Compute::kF32);
    AlignedBuffer turned(rows * cols * (wide ? sizeof(float) : sizeof(bf16)));
    std::vector<float> row(cols);
    for (std::size_t r = 0; r < rows; ++r) {
      decode_row(from, r, row);
      for (std::size_t c = 0; c < cols; ++c) {
        if (wide) {
          turned.as<float>()[c * rows + r] = row[c];
        } else {
          turned.as<bf16>()[c * rows + r] = bf16::from_float(row[c]);
        }
      }
    }
    made.push_back(
        Weight::own(wide ? QuantFormat::kF32 : QuantFormat::kBf16, cols, rows, std::move(turned)));
  }
}

}  // namespace glint
