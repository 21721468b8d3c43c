// What fits: cgroup limits on a made-up file system, and plans on a made-up model.
#include "tools/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "tools/bench.h"
#include "tools/plan_report.h"

namespace glint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class AvailableMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "glint-memory-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    write("proc/meminfo", "MemTotal: 16000000 kB\nMemFree: 10 kB\nMemAvailable: 8000000 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const fs::path& path, std::string_view text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  fs::path root_;
};

TEST_F(AvailableMemoryTest, without_cgroups_it_is_mem_available) {
  const AvailableMemory memory = available_memory(root_);
  EXPECT_EQ(memory.bytes, 8000000ull * 1024);
  EXPECT_EQ(memory.source, "MemAvailable");
}

TEST_F(AvailableMemoryTest, the_tightest_limit_up_the_tree_counts_without_droppable_pages) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("sys/fs/cgroup/outer/inner/memory.current", "100\n");
  write("sys/fs/cgroup/outer/memory.max", "1000000\n");
  write("sys/fs/cgroup/outer/memory.current", "600000\n");
  write("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 100000\nactive_file 200000\n");
  const AvailableMemory memory = available_memory(root_);
  EXPECT_EQ(memory.bytes, 700000u);
  EXPECT_EQ(memory.source, "the cgroup's memory.max");
}

TEST_F(AvailableMemoryTest, version_1_limits_count_too) {
  write("proc/self/cgroup", "7:cpu:/x\n5:memory:/box\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "6000\n");
  EXPECT_EQ(available_memory(root_).bytes, 0u);
}

// 1 MiB of weights, 64 KiB per page, 4096 positions.
ModelInfo small_model() {
  ModelInfo info;
  info.vocab_size = 256;
  info.max_position_embeddings = 4096;
  info.weights = {{WeightPart::kAttention, DType::kBf16, 512, 1024, 1}};
  info.cache.bf16 = {"rows", 4, 256};
  return info;
}

constexpr std::uint64_t kRoomy = 1ull << 40;
constexpr std::uint64_t kMiB = 1 << 20;

Result<MemoryPlan> plan(MemoryRequest request, std::uint64_t available) {
  const ModelInfo info = small_model();
  return plan_memory(info, info.cache.bf16, request, {available, "MemAvailable"});
}

// What such a plan takes with these tokens of context, chunks of 128.
std::uint64_t needed(int context, int sequences = 1) {
  return plan({.context = context, .num_sequences = sequences, .chunk = 128}, kRoomy)->total();
}

TEST(PlanMemory, the_default_context_is_the_models) {
  const auto made = plan({.num_sequences = 2}, kRoomy);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->context, 4096);
  EXPECT_EQ(made->context_reason, ContextReason::kModel);
  EXPECT_EQ(made->num_pages, 2u * 64);
  EXPECT_EQ(made->cache, 2u * 64 * 65536);
}

TEST(PlanMemory, the_total_is_the_sum_of_its_classes) {
  const auto made =
      plan({.context = 64, .threads = 3, .resident = 5 * kMiB, .serves = true}, kRoomy);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->weights, kMiB);
  EXPECT_EQ(made->parts.attention, kMiB);
  EXPECT_EQ(made->requests, 1024 * kMiB);
  EXPECT_GT(made->program, 5 * kMiB);
  EXPECT_EQ(plan({.context = 64, .body_bytes = kMiB}, kRoomy)->requests, 80 * kMiB);
  EXPECT_EQ(made->total(), made->weights + made->cache + made->logits + made->scratch +
                               made->requests + made->program);
  EXPECT_EQ(plan({.context = 64, .resident = 7 * kMiB}, kRoomy)->program,
            plan({.context = 64, .resident = 5 * kMiB}, kRoomy)->program + 2 * kMiB);
}

TEST(PlanMemory, the_default_context_shrinks_to_what_fits_and_says_so) {
  const auto made = plan({.num_sequences = 1, .chunk = 128}, needed(640) + 5);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->context, 640);
  EXPECT_EQ(made->context_reason, ContextReason::kMemory);
  EXPECT_EQ(made->largest_context, 640);
  EXPECT_THAT(plan_summary(*made), HasSubstr("context 640: more does not fit MemAvailable"));
}

TEST(PlanMemory, the_default_context_stops_at_32768_and_auto_does_not) {
  ModelInfo info = small_model();
  info.max_position_embeddings = 100000;
  const auto with = [&](int context, std::uint64_t limit) {
    return *plan_memory(info, info.cache.bf16, {.context = context, .limit = limit, .chunk = 128},
                        {});
  };
  EXPECT_EQ(with(0, kRoomy).context, 32768);
  EXPECT_EQ(with(0, kRoomy).context_reason, ContextReason::kDefault);
  EXPECT_EQ(with(MemoryRequest::kLargest, kRoomy).context, 100000);
  EXPECT_EQ(with(MemoryRequest::kLargest, kRoomy).context_reason, ContextReason::kModel);
  const std::uint64_t tight = with(64000, kRoomy).total();
  EXPECT_EQ(with(MemoryRequest::kLargest, tight).context, 64000);
  EXPECT_EQ(with(MemoryRequest::kLargest, tight).context_reason, ContextReason::kMemory);
  EXPECT_LE(with(MemoryRequest::kLargest, tight).total(), tight);
}

TEST(PlanMemory, an_explicit_context_is_never_cut_but_refused_with_the_largest_that_fits) {
  const auto refused = plan({.context = 4096, .chunk = 128}, needed(640));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("the largest that fits is --ctx 640"));
  EXPECT_THAT(refused.error().message, HasSubstr("MemAvailable"));
  EXPECT_TRUE(plan({.context = 640, .chunk = 128}, needed(640)));
}

TEST(PlanMemory, sequences_that_do_not_fit_are_refused_with_how_many_do) {
  const std::uint64_t limit = needed(4096, 5);
  const auto refused = plan({.context = 4096, .num_sequences = 9, .chunk = 128}, limit);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("with --parallel 5 it fits"));
  EXPECT_THAT(refused.error().message, HasSubstr("with 9 sequences"));
  EXPECT_EQ(plan({.context = 4096, .num_sequences = 5, .chunk = 128}, limit)->most_sequences, 5);
}

TEST(PlanMemory, steps_are_shortened_before_the_context) {
  ModelInfo info = small_model();
  info.hidden_size = 4096;
  const auto with = [&](const MemoryRequest& request) {
    return *plan_memory(info, info.cache.bf16, request, {});
  };
  EXPECT_EQ(with({.limit = kRoomy}).chunk, 2048);
  const MemoryPlan tight = with({.limit = 256 * kMiB});
  EXPECT_LT(tight.chunk, 2048);
  EXPECT_EQ(tight.context, 4096);
  EXPECT_EQ(with({.limit = kRoomy, .chunk = 999, .fixed_chunk = true}).chunk, 999);
}

TEST(PlanMemory, float32_rows_take_twice_the_room) {
  EXPECT_EQ(plan({.context = 64, .load = {.compute = Compute::kF32}}, kRoomy)->cache, 2u * 65536);
}

TEST(PlanMemory, a_draft_layer_counts_when_it_is_loaded) {
  ModelInfo info = small_model();
  info.weight_bytes = 1 << 20;
  info.draft.weight_bytes = 1 << 18;
  info.draft.copy_bytes = 1 << 16;
  info.draft.cache.bf16 = {"rows", 5, 256};
  MemoryRequest request{.context = 64};
  const auto without = plan_memory(info, info.cache.bf16, request, {kRoomy, "MemAvailable"});
  request.load.draft = DraftLayer::kIfPresent;
  const auto with = plan_memory(info, info.draft.cache.bf16, request, {kRoomy, "MemAvailable"});
  ASSERT_TRUE(without && with);
  EXPECT_EQ(with->weights, without->weights + (1 << 18) + (1 << 16));
  EXPECT_EQ(with->cache, without->cache + 64 * 256);
  request.load.placement = WeightPlacement::kMapped;
  const auto mapped = plan_memory(info, info.draft.cache.bf16, request, {kRoomy, "MemAvailable"});
  EXPECT_EQ(mapped->weights, 0u) << "as the others, it stays in the file";
}

// As small_model(), with 1 MiB of state a sequence and snapshots of half of that.
Result<MemoryPlan> plan_recurrent(MemoryRequest request, std::uint64_t available) {
  ModelInfo info = small_model();
  info.cache.bf16.state_bytes = 1 << 20;
  info.cache.bf16.snapshot_bytes = 1 << 19;
  return plan_memory(info, info.cache.bf16, request, {available, "MemAvailable"});
}

TEST(PlanMemory, recurrent_states_count_for_each_sequence_and_snapshots_beside) {
  const auto roomy = plan_recurrent({.context = 64, .num_sequences = 3}, kRoomy);
  ASSERT_TRUE(roomy);
  EXPECT_EQ(roomy->states.states, 3u << 20);
  EXPECT_EQ(roomy->states.num_snapshots, 8u + 3 * 8);
  EXPECT_EQ(roomy->states.snapshots, 32u << 19);
  EXPECT_EQ(roomy->bytes_per_sequence, kMiB);
  EXPECT_EQ(plan({.context = 64}, kRoomy)->states.total(), 0u);
  EXPECT_EQ(roomy->total() - roomy->states.total(),
            plan({.context = 64, .num_sequences = 3}, kRoomy)->total());
  const auto asked = plan_recurrent({.context = 64, .num_snapshots = 5}, kRoomy);
  EXPECT_EQ(asked->states.num_snapshots, 5u);
  EXPECT_EQ(plan_recurrent({.context = 64, .num_snapshots = 0}, kRoomy)->states.snapshots, 0u);
}

TEST(PlanMemory, states_of_f32_compute_are_not_counted_as_if_they_were_bf16) {
  const auto wide = plan_recurrent(
      {.context = 64, .num_sequences = 3, .load = {.compute = Compute::kF32}}, kRoomy);
  EXPECT_EQ(wide->states.states, 6u << 20);
}

TEST(PlanMemory, snapshots_take_an_eighth_of_what_is_left_or_what_a_context_leaves) {
  const auto without = [](int context) {
    return plan_recurrent({.context = context, .num_snapshots = 0, .chunk = 128}, kRoomy)->total();
  };
  // 24 MiB beside the least context.
  const std::uint64_t least = without(256) - 4 * 65536;
  EXPECT_EQ(plan_recurrent({.chunk = 128}, least + 24 * kMiB)->states.num_snapshots, 6u);
  const MemoryRequest asked{.context = 4096, .chunk = 128};
  EXPECT_EQ(plan_recurrent(asked, without(4096) + kMiB)->states.num_snapshots, 1u);
  EXPECT_EQ(plan_recurrent(asked, without(4096))->states.num_snapshots, 0u)
      << "a context that was asked for comes first";
  MemoryRequest three = asked;
  three.num_snapshots = 3;
  const auto refused = plan_recurrent(three, without(4096) + kMiB);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("with --snapshots 2 it fits"));
}

TEST(PlanMemory, states_that_do_not_fit_are_refused_with_the_sequences_that_do) {
  const auto with = [](int sequences, std::uint64_t limit) {
    return plan_recurrent({.context = 64, .num_sequences = sequences, .chunk = 128}, limit);
  };
  const std::uint64_t limit = with(10, kRoomy)->total() - with(10, kRoomy)->states.snapshots;
  const auto refused = with(40, limit);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("40 recurrent states 40.00 MiB"));
  EXPECT_THAT(refused.error().message, HasSubstr("; with --parallel 10 it fits"));
  EXPECT_TRUE(with(10, limit));
  EXPECT_FALSE(with(11, limit));
}

TEST(PlanMemory, the_users_limit_replaces_the_measurement_both_ways) {
  const auto refused = plan({.context = 64, .limit = 1000}, kRoomy);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("--memory gives 1000 B"));
  EXPECT_THAT(refused.error().message, Not(HasSubstr("overrides the measurement")));
  EXPECT_TRUE(plan({.context = 64, .limit = kRoomy}, 0));
}

TEST(PlanMemory, a_context_beyond_the_model_is_the_users_mistake) {
  const auto refused = plan({.context = 4097}, kRoomy);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("4096 positions"));
}

TEST(PeakResident, something_is_resident) {
  EXPECT_GT(peak_resident_bytes(), 100000u);
}

TEST(PlanMemory, only_weights_in_memory_count_and_in_the_form_they_take_there) {
  const auto weights = [](const LoadOptions& load) {
    return plan({.context = 64, .load = load}, kRoomy)->weights;
  };
  EXPECT_EQ(weights({}), 1u << 20);
  EXPECT_EQ(weights({.quant = WeightQuant::kQ8}), (1u << 20) / 64 * 34);
  EXPECT_EQ(weights({.placement = WeightPlacement::kMapped}), 0u);
  EXPECT_EQ(weights({.placement = WeightPlacement::kMapped, .quant = WeightQuant::kQ8}),
            (1u << 20) / 64 * 34);
}

// Attention of 64 x 64, two of eight experts of 64 x 64 each, a head of 128 x 64.
ModelInfo sparse_model(DType type) {
  ModelInfo info;
  info.vocab_size = 128;
  info.num_experts = 8;
  info.experts_per_token = 2;
  info.weights = {{WeightPart::kAttention, type, 64, 64, 1},
                  {WeightPart::kExperts, type, 64, 64, 8},
                  {WeightPart::kVectors, DType::kF32, 1, 64, 1},
                  {WeightPart::kEmbedding, type, 128, 64, 1},
                  {WeightPart::kHead, type, 128, 64, 1}};
  return info;
}

BenchFloor floor_of(const ModelInfo& info, const BenchResult& test, const MachineRates& rates) {
  const std::vector<PlacedGroup> weights = place_weights(info, {});
  return bench_floor({info, weights}, test, rates);
}

// Two sparse layers of 16 experts of 3 x 1 MiB, 1 MiB of other weights.
ModelInfo model_of_experts() {
  ModelInfo info = small_model();
  info.hidden_size = 64;
  info.num_experts = 16;
  info.experts_per_token = 2;
  info.weights.push_back({WeightPart::kExperts, DType::kBf16, 512, 1024, 2 * 16 * 3, {}, 1 << 20});
  return info;
}

Result<MemoryPlan> plan_experts(const MemoryRequest& request) {
  const ModelInfo info = model_of_experts();
  return plan_memory(info, info.cache.bf16, request, {kRoomy, "MemAvailable"});
}

TEST(PlanMemory, experts_go_to_disk_only_where_the_weights_do_not_fit) {
  EXPECT_FALSE(plan_experts({.limit = 400 * kMiB})->streams);
  MemoryRequest request{.context = 64, .chunk = 128};
  // 97 MiB of weights, and what is needed whatever they are.
  const std::uint64_t beside = plan_experts(request)->total() - 97 * kMiB;
  request.limit = beside + 97 * kMiB;
  EXPECT_FALSE(plan_experts(request)->streams);
  request.limit = beside + 50 * kMiB;
  EXPECT_TRUE(plan_experts(request)->streams);
  request.streaming = ExpertStreaming::kOn;
  const auto forced = plan_experts(request);
  ASSERT_TRUE(forced) << forced.error().message;
  EXPECT_TRUE(forced->streams);
  EXPECT_EQ(forced->weights, kMiB);
  EXPECT_EQ(forced->streamed, 96 * kMiB);
  EXPECT_EQ(forced->num_experts, 32U);
  EXPECT_LE(forced->total(), forced->limit);
  EXPECT_GT(forced->num_slots, 8U);
  EXPECT_LT(forced->num_slots, 17U);
}

TEST(PlanMemory, what_does_not_fit_even_without_experts_is_refused_with_the_sums) {
  const auto refused = plan_experts({.limit = 30 * kMiB});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("even with the experts on disk"));
  const auto off = plan_experts({.limit = 30 * kMiB, .streaming = ExpertStreaming::kOff});
  ASSERT_FALSE(off);
  EXPECT_THAT(off.error().message, HasSubstr("weights 97.00 MiB"));
}

TEST(PlanReport, json_and_lines_name_every_class_that_takes_memory) {
  const auto made =
      plan_recurrent({.context = 128, .num_sequences = 2, .num_snapshots = 1}, kRoomy);
  ASSERT_TRUE(made);
  const Json json = plan_json(*made);
  EXPECT_EQ(json.find("weights")->find("attention")->as_int(), 1 << 20);
  EXPECT_EQ(json.find("weights")->find("total")->as_int(), 1 << 20);
  std::int64_t sum = json.find("weights")->find("total")->as_int();
  for (const char* name : {"kv_cache_bytes", "state_bytes", "snapshots_bytes", "logits_bytes",
                           "scratch_bytes", "request_bytes", "program_bytes"})
    sum += json.find(name)->as_int();
  EXPECT_EQ(sum, json.find("total_bytes")->as_int());
  EXPECT_EQ(json.find("largest_context")->as_int(), 4096);
  EXPECT_EQ(json.find("bytes_per_token")->as_int(), 1024);
  EXPECT_EQ(json.find("most_sequences")->as_int(), kMostSequences);
  std::string text;
  for (const PlanLine& line : plan_lines(*made)) text += line.name + "|" + line.value + "\n";
  EXPECT_THAT(text, HasSubstr("1.00 MiB  attention"));
  EXPECT_THAT(text, HasSubstr("2 recurrent states"));
  EXPECT_THAT(text, HasSubstr("with 2 sequences up to --ctx 4096"));
}

TEST(PlanMemory, only_experts_in_memory_of_their_own_can_be_streamed) {
  const auto dense = plan({.streaming = ExpertStreaming::kOn}, kRoomy);
  ASSERT_FALSE(dense);
  EXPECT_THAT(dense.error().message, HasSubstr("no routed experts"));
  const auto mapped = plan_experts(
      {.load = {.placement = WeightPlacement::kMapped}, .streaming = ExpertStreaming::kOn});
  ASSERT_FALSE(mapped);
  EXPECT_THAT(mapped.error().message, HasSubstr("--mmap"));
}

TEST(BenchFloor, one_token_is_bound_by_its_bytes) {
  ModelInfo info = sparse_model(DType::kBf16);
  info.cache.bf16 = {"rows", 4, 256};
  const BenchFloor floor =
      floor_of(info, {.tokens = 1, .depth = 9}, {.bytes_per_s = 1e6, .flops_per_s = 1e12});
  const double bytes = 2.0 * 64 * (64 + 2 * 64 + 128) + 4 * 64 + 10 * 1024;
  EXPECT_DOUBLE_EQ(floor.bytes_per_step, bytes);
  EXPECT_DOUBLE_EQ(floor.tokens_per_s, 1e6 / bytes);
  EXPECT_FALSE(floor.compute_bound);
}

TEST(BenchFloor, more_tokens_read_more_experts_but_never_more_than_all) {
  const ModelInfo info = sparse_model(DType::kBf16);
  const auto bytes = [&](int parallel) {
    return floor_of(info, {.tokens = 1, .parallel = parallel},
                    {.bytes_per_s = 1e6, .flops_per_s = 1e12})
        .bytes_per_step;
  };
  EXPECT_GT(bytes(2), bytes(1) + 8192);
  EXPECT_NEAR(bytes(1000), 2.0 * 64 * (64 + 8 * 64 + 128) + 4 * 64, 1e-6);
}

TEST(BenchFloor, low_bit_weights_are_counted_against_the_peak_of_int8_products) {
  const MachineRates rates{.bytes_per_s = 1e12, .flops_per_s = 1e6, .int8_flops_per_s = 4e6};
  const BenchResult test{.prefill = true, .tokens = 64};
  const double flops = 2.0 * 64 * (64 + 2 * 64);  // prefill needs no head
  const BenchFloor wide = floor_of(sparse_model(DType::kBf16), test, rates);
  EXPECT_TRUE(wide.compute_bound);
  EXPECT_DOUBLE_EQ(wide.flops_per_token, flops);
  EXPECT_DOUBLE_EQ(wide.tokens_per_s, 1e6 / flops);
  EXPECT_DOUBLE_EQ(floor_of(sparse_model(DType::kQ4_0), test, rates).tokens_per_s, 4e6 / flops);
}

TEST(WeightsInUse, types_that_products_read_are_listed_with_their_kernel) {
  ModelInfo info = sparse_model(DType::kQ4_0);
  info.weights[0].type = DType::kQ6_K;
  info.weights[0].cols = 256;
  const std::vector<PlacedGroup> weights = place_weights(info, {});
  const auto uses = weights_in_use({info, weights}, Isa::kScalar);
  ASSERT_EQ(uses.size(), 2u);  // neither vectors nor the embedding
  EXPECT_EQ(uses[0].form.type, DType::kQ4_0);
  EXPECT_EQ(uses[0].bytes, 64u / 32 * 18 * (8 * 64 + 128));
  EXPECT_EQ(uses[0].kernel, "int8 loops (scalar)");
  EXPECT_EQ(uses[1].form.type, DType::kQ6_K);
}

TEST(BenchTests, every_prompt_length_is_a_test_and_0_is_none) {
  EXPECT_EQ(bench_tests({.prompt_tokens = {16, 32}, .generated_tokens = 0, .depths = {0}}).size(),
            2u);
  EXPECT_TRUE(bench_tests({.prompt_tokens = {0}, .generated_tokens = 0, .depths = {0}}).empty());
}

TEST(BenchResult, the_median_ignores_outliers) {
  EXPECT_DOUBLE_EQ((BenchResult{.tokens_per_s = {1, 100, 2}}).median(), 2);
  EXPECT_DOUBLE_EQ((BenchResult{.tokens_per_s = {4, 2}}).median(), 3);
}

}  // namespace
}  // namespace glint
