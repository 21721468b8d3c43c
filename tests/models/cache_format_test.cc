// The packed formats of the cache: their rows against others' rounding, what models store, and what
// it does to logits.
#include "models/cache_format.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "golden.h"
#include "models/registry.h"
#include "tensor/row_format.h"

namespace glint::golden {
namespace {

constexpr CacheFormat kPacked[] = {CacheFormat::kFp8, CacheFormat::kFp4};

std::vector<std::byte> pack(CacheFormat format, const float* x, int width) {
  std::vector<std::byte> row(row_bytes(row_format(format, Compute::kBf16), width));
  (format == CacheFormat::kFp8 ? pack_fp8_row : pack_fp4_row)(x, width, row.data());
  return row;
}

// reference/make_row_vectors.py, by ml_dtypes.
TEST(RowFormat, rows_are_byte_for_byte_what_others_make_and_read) {
  const auto vectors =
      read_expected(std::filesystem::path(GLINT_TEST_DATA) / "row_vectors.safetensors");
  for (const int width : {128, 512, 576, 40}) {
    const Expected& x = vectors.at(fmt::format("x{}", width));
    for (const CacheFormat format : kPacked) {
      const std::string name = fmt::format("{}_{}", cache_format_name(format), width);
      const Expected& rows = vectors.at(name);
      const Expected& values = vectors.at(name + "_values");
      const auto bytes = static_cast<std::size_t>(rows.shape[1]);
      for (std::size_t r = 0; r < static_cast<std::size_t>(rows.shape[0]); ++r) {
        const std::size_t first = r * static_cast<std::size_t>(width);
        const auto row = pack(format, x.values.data() + first, width);
        ASSERT_EQ(row.size(), bytes);
        std::vector<std::byte> want(bytes);
        for (std::size_t i = 0; i < bytes; ++i)
          want[i] = static_cast<std::byte>(static_cast<int>(rows.values[r * bytes + i]));
        EXPECT_EQ(row, want) << name << " row " << r;
        std::vector<bf16> read(static_cast<std::size_t>(width));
        (format == CacheFormat::kFp8 ? unpack_fp8_row : unpack_fp4_row)(want.data(), width,
                                                                        read.data());
        for (std::size_t i = 0; i < read.size(); ++i)
          ASSERT_EQ(read[i].to_float(), values.values[first + i]) << name << " value " << i;
      }
    }
  }
}

TEST(RowFormat, rows_have_the_sizes_of_their_layouts) {
  EXPECT_EQ(row_bytes(RowFormat::kFp8, 512), 528u);
  EXPECT_EQ(row_bytes(RowFormat::kFp4, 512), 288u);
  EXPECT_EQ(row_bytes(RowFormat::kFp8, 576), 594u);
  EXPECT_EQ(row_bytes(RowFormat::kFp4, 576), 324u);
  EXPECT_EQ(row_bytes(RowFormat::kFp8, 40), 42u) << "the last group is shorter";
  EXPECT_EQ(row_bytes(RowFormat::kFp4, 3), 3u);
}

TEST(CacheFormat, a_format_that_a_model_has_not_is_refused_with_those_it_has) {
  ModelInfo info;
  info.family = "X-1";
  info.cache = {CacheSpec{"rows", 1, 64}, CacheSpec{"rows", 1, 33}, {}};
  EXPECT_TRUE(check_cache_format(info, CacheFormat::kFp8).has_value());
  const Status refused = check_cache_format(info, CacheFormat::kFp4);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().message,
            "X-1 keeps no cache of format fp4, only bf16, fp8 (--kv-cache)");
}

// A model of one kind of rows: `count` of `width` to a token, each in a block of its own in a page.
struct RowCase {
  const char* name;
  int width, count;
  double kl[2];  // bounds of fp8, of fp4: about twice what is measured
};

void PrintTo(const RowCase& c, std::ostream* out) {
  *out << c.name;
}

class CacheRowsOfModels : public testing::TestWithParam<RowCase> {
 protected:
  CacheRowsOfModels() : golden_(GetParam().name) {}
  Runner::Options options(CacheFormat format, Compute compute = Compute::kF32) const {
    Runner::Options options;
    options.isa = tested_isas().back();
    options.compute = compute;
    options.cache_format = format;
    return options;
  }
  Case golden_;
};

// Layer 0 of the cache has seen no rounding yet: its rows are those of the float32 run, packed.
TEST_P(CacheRowsOfModels, pages_hold_the_packed_rows_of_the_exact_run) {
  const RowCase& rows = GetParam();
  const auto& ids = golden_.prompt(golden_.num_prompts() - 1);
  const auto run = [&](CacheFormat format) {
    auto runner = std::make_unique<Runner>(golden_.folder(), options(format));
    runner->logits(ids, 0);
    return runner;
  };
  const auto exact = run(CacheFormat::kBf16);
  const int whole = static_cast<int>(ids.size()) / kPageSize;
  for (const CacheFormat format : kPacked) {
    const auto packed = run(format);
    const auto want_start = start_sequence(exact->model(), exact->cache(), ids);
    const auto got_start = start_sequence(packed->model(), packed->cache(), ids);
    // With whole pages from the prefix tree; a prompt of less than one has its page behind them.
    const int pages = std::max(1, whole);
    std::size_t compared = 0;
    for (int p = 0; p < pages && p < static_cast<int>(got_start.pages().size()); ++p) {
      const auto at = static_cast<std::size_t>(p);
      const std::byte* from = exact->cache().rows(want_start.pages()[at], 0);
      const std::byte* got = packed->cache().rows(got_start.pages()[at], 0);
      const std::size_t bytes = row_bytes(row_format(format, Compute::kF32), rows.width);
      for (int r = 0; r < rows.count * kPageSize; ++r) {
        std::vector<float> x(static_cast<std::size_t>(rows.width));
        std::memcpy(x.data(), from + static_cast<std::size_t>(r) * x.size() * sizeof(float),
                    x.size() * sizeof(float));
        const std::byte* row = got + static_cast<std::size_t>(r) * bytes;
        ASSERT_EQ(std::vector<std::byte>(row, row + bytes), pack(format, x.data(), rows.width))
            << cache_format_name(format) << " row " << r;
        ++compared;
      }
    }
    EXPECT_GE(compared, static_cast<std::size_t>(kPageSize));
  }
}

// Against the float32 logits, where rounding has not made another expert win (golden_test.cc).
TEST_P(CacheRowsOfModels, logits_stay_close_where_the_same_experts_are_chosen) {
  Runner exact(golden_.folder(), options(CacheFormat::kBf16));
  double kl[2] = {};
  for (const CacheFormat format : kPacked) {
    Runner packed(golden_.folder(), options(format));
    double total = 0;
    std::size_t rows = 0;
    for (int p = 0; p < golden_.num_prompts(); ++p) {
      const auto& ids = golden_.prompt(p);
      const auto chosen = same_experts(exact.states(ids), packed.states(ids), ids.size());
      exact.cache().clear_prefixes();
      packed.cache().clear_prefixes();
      const auto want = exact.logits(ids, 0), got = packed.logits(ids, 0);
      exact.cache().clear_prefixes();
      packed.cache().clear_prefixes();
      const auto each = kl_of_rows(want, got, exact.vocab());
      for (std::size_t i = 0; i < each.size() && chosen[i]; ++i, ++rows) total += each[i];
    }
    kl[format == CacheFormat::kFp8 ? 0 : 1] = total / static_cast<double>(rows);
    EXPECT_GT(rows, 1u);
  }
  RecordProperty("kl", fmt::format("{:.2e} {:.2e}", kl[0], kl[1]));
  EXPECT_LT(kl[0], GetParam().kl[0]) << "fp8";
  EXPECT_LT(kl[1], GetParam().kl[1]) << "fp4";
  EXPECT_GT(kl[0], 0) << "the rows are not packed at all";
  EXPECT_GT(kl[1], kl[0]);
}

TEST_P(CacheRowsOfModels, chunks_batches_and_prefix_hits_have_the_same_bits) {
  for (const CacheFormat format : kPacked) {
    Runner::Options deterministic = options(format, Compute::kBf16);
    deterministic.form = LatentForm::kAbsorbed;
    Runner runner(golden_.folder(), deterministic);
    const auto& ids = golden_.prompt(golden_.num_prompts() - 1);
    const auto want = runner.logits(ids, 0);
    // What the prefix tree holds is missing at the front.
    const auto hot = runner.logits(ids, 0);
    ASSERT_LE(hot.size(), want.size());
    EXPECT_TRUE(std::equal(hot.rbegin(), hot.rend(), want.rbegin()));
    if (runner.model().cache_spec().state_bytes > 0) continue;  // recurrences are cut by chunks
    for (const int chunk : {1, 7, 64}) {
      runner.cache().clear_prefixes();
      EXPECT_EQ(runner.logits(ids, chunk), want) << "chunk " << chunk;
    }
    runner.cache().clear_prefixes();
    const auto together = runner.logits_together({golden_.prompt(0), ids}, 13);
    EXPECT_EQ(together[1], want);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CacheRowsOfModels,
                         testing::Values(RowCase{"glm4_moe_lite", 40, 1, {6e-2, 0.4}},
                                         RowCase{"glm4_moe", 16, 4, {3e-2, 0.3}},
                                         RowCase{"glm5_next", 40, 1, {3e-3, 3e-2}}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace glint::golden
