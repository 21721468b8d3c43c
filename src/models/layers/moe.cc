#include "models/layers/moe.h"

#include <algorithm>
#include <limits>

#include "models/expert_store.h"

namespace glint {
namespace {

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

// The index of the largest value; the lowest index on ties.
int arg_max(const float* values, int n) {
  int best = 0;
  for (int i = 1; i < n; ++i) {
    if (values[i] > values[best]) best = i;
  }
  return best;
}

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

// Leaves only the experts of the topk_group best groups; a group counts the sum of its two best.
// `group_score` is scratch for n_group values.
void keep_best_groups(const RouterDims& dims, float* choice, float* group_score) {
  const int width = dims.num_experts / dims.n_group;
  for (int g = 0; g < dims.n_group; ++g) {
    const float* values = choice + g * width;
    const int best = arg_max(values, width);
    float second = kExcluded;
    for (int i = 0; i < width; ++i) {
      if (i != best) second = std::max(second, values[i]);
    }
    group_score[g] = values[best] + second;
  }
  for (int n = 0; n < dims.topk_group; ++n)
    group_score[arg_max(group_score, dims.n_group)] = kExcluded;
  for (int g = 0; g < dims.n_group; ++g) {
    const bool kept = group_score[g] == kExcluded;
    if (!kept) std::fill_n(choice + g * width, width, kExcluded);
  }
}

}  // namespace

void select_experts(const RouterDims& dims, const float* scores, const float* bias, float* choice,
                    std::int32_t* experts, float* weights) {
  for (int e = 0; e < dims.num_experts; ++e) choice[e] = scores[e] + bias[e];
  if (dims.n_group > 1) keep_best_groups(dims, choice, choice + dims.num_experts);
  float sum = 0;
  for (int i = 0; i < dims.experts_per_token; ++i) {
    const int best = arg_max(choice, dims.num_experts);
    choice[best] = kExcluded;
    experts[i] = best;
    weights[i] = scores[best];
    sum += scores[best];
  }
  // Normalise first, scale second (transformers, modeling_glm4_moe_lite.py).
  const float norm = dims.norm_topk_prob ? 1.0f / (sum + 1e-20f) : 1.0f;
  for (int i = 0; i < dims.experts_per_token; ++i)
    weights[i] = weights[i] * norm * dims.routed_scaling_factor;
}

void route(Exec& exec, const RouterDims& dims, const Weight& gate, const std::vector<float>& bias,
           const float* x, int tokens, int hidden, const Routing& routing) {
  Workspace::Scope scope(exec.workspace);
  const std::size_t experts = size(dims.num_experts);
  auto* scores = exec.workspace.array<float>(size(tokens) * experts);
  WorkerScratch choice(exec, 2 * experts * sizeof(float));
  const MatmulKernels& kernels = matmul_kernels(exec.kernels, gate.format(), Compute::kF32);
  const Activations packed = pack(exec, kernels, x, size(hidden), tokens, hidden);
  matmul(exec, {packed, &gate, scores, experts});
  constexpr int kTokensPerTask = 16;
  exec.pool.run(
      size((tokens + kTokensPerTask - 1) / kTokensPerTask), [&](std::size_t task, int worker) {
        const int first = static_cast<int>(task) * kTokensPerTask;
        for (int t = first; t < std::min(first + kTokensPerTask, tokens); ++t) {
          float* row = scores + size(t) * experts;
          exec.kernels.sigmoid(row, dims.num_experts);
          select_experts(dims, row, bias.data(), reinterpret_cast<float*>(choice.of(worker)),
                         routing.experts + size(t) * size(dims.experts_per_token),
                         routing.weights + size(t) * size(dims.experts_per_token));
        }
      });
}

namespace {

// A step of so many tokens needs about all experts of a layer.
constexpr int kTokensForAll = 64;

void look_ahead(Exec& exec, const RouterDims& dims, const MoeWeights& weights,
                const LookAhead& ahead, int tokens, int hidden) {
  ExpertStore& store = *weights.store;
  const ExpertRouter* next = ahead.h == nullptr ? nullptr : store.router_after(weights.store_layer);
  if (next == nullptr) return;
  Workspace::Scope scope(exec.workspace);
  if (tokens >= kTokensForAll) {
    auto* all = exec.workspace.array<std::int32_t>(size(dims.num_experts));
    for (int e = 0; e < dims.num_experts; ++e) all[e] = e;
    return store.expect(weights.store_layer + 1, {all, size(dims.num_experts)});
  }
  const std::size_t picks = size(tokens) * size(dims.experts_per_token);
  const Routing guess{exec.workspace.array<std::int32_t>(picks),
                      exec.workspace.array<float>(picks)};
  auto* x = exec.workspace.array<float>(size(tokens) * size(hidden));
  for (std::size_t t = 0; t < size(tokens); ++t) {
    exec.kernels.rms_norm(ahead.h + t * size(hidden), next->norm.data(), hidden, ahead.norm_eps,
                          x + t * size(hidden));
  }
  route(exec, dims, next->gate, next->bias, x, tokens, hidden, guess);
  store.expect(weights.store_layer + 1, {guess.experts, picks});
}

// The groups' experts in their order, each as soon as it and those before it are in memory.
void moe_of_streamed(Exec& exec, Compute compute, const RouterDims& dims, const MoeWeights& weights,
                     const float* x, int tokens, int hidden, std::span<MlpGroup> groups,
                     std::span<const ExpertStore::Want> wanted, const LookAhead& ahead, float* y) {
  ExpertStore::Use use(*weights.store, weights.store_layer, tokens, wanted);
  look_ahead(exec, dims, weights, ahead, tokens, hidden);
  const std::size_t shared = groups.size() - wanted.size();
  gated_mlp(exec, compute, x, tokens, hidden, groups.first(shared), y);
  std::size_t done = shared;
  for (auto ready = use.next(); !ready.empty(); ready = use.next()) {
    for (std::size_t i = 0; i < ready.size(); ++i) groups[done + i].mlp = ready[i];
    gated_mlp(exec, compute, x, tokens, hidden, groups.subspan(done, ready.size()), y, true);
    done += ready.size();
  }
  if (done < groups.size()) std::fill_n(y, size(tokens) * size(hidden), 0.0f);
}

}  // namespace

void moe(Exec& exec, Compute compute, const RouterDims& dims, const MoeWeights& weights,
         const float* x, int tokens, int hidden, const Routing& routing, float* y,
         const LookAhead& ahead) {
  Workspace::Scope scope(exec.workspace);
  const std::size_t picks = size(tokens) * size(dims.experts_per_token);
  // Rows by expert: a counting sort that keeps tokens ascending.
  auto* first = exec.workspace.array<std::int32_t>(size(dims.num_experts) + 1);
  std::fill_n(first, size(dims.num_experts) + 1, 0);
  for (std::size_t i = 0; i < picks; ++i) ++first[routing.experts[i] + 1];
  for (int e = 0; e < dims.num_experts; ++e) first[e + 1] += first[e];
  auto* next = exec.workspace.array<std::int32_t>(size(dims.num_experts));
  std::copy_n(first, dims.num_experts, next);
  auto* rows = exec.workspace.array<std::int32_t>(picks);
  auto* scales = exec.workspace.array<float>(picks);
  for (std::size_t i = 0; i < picks; ++i) {
    const std::int32_t slot = next[routing.experts[i]]++;
    rows[slot] = static_cast<std::int32_t>(i / size(dims.experts_per_token));
    scales[slot] = routing.weights[i];
  }
  auto* groups = exec.workspace.array<MlpGroup>(size(dims.num_experts) + 1);
  auto* wanted = exec.workspace.array<ExpertStore::Want>(size(dims.num_experts));
  const bool streamed = weights.store != nullptr;
  std::size_t count = 0, num_wanted = 0;
  if (!weights.shared_experts.gate.empty())
    groups[count++] = {&weights.shared_experts, {}, nullptr};
  for (int e = 0; e < dims.num_experts; ++e) {
    const std::size_t n = size(first[e + 1] - first[e]);
    if (n == 0) continue;
    wanted[num_wanted++] = {e, static_cast<int>(n)};
    groups[count++] = {
        streamed ? nullptr : &weights.experts[size(e)], {rows + first[e], n}, scales + first[e]};
  }
  if (streamed) {
    return moe_of_streamed(exec, compute, dims, weights, x, tokens, hidden, {groups, count},
                           {wanted, num_wanted}, ahead, y);
  }
  gated_mlp(exec, compute, x, tokens, hidden, {groups, count}, y);
}

}  // namespace glint
