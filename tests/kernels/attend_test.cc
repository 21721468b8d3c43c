#include <algorithm>
#include <memory>

#include "kernel_test.h"

namespace glint::test {
namespace {

constexpr int kPageKeys = 64;

// Rows of one span as pages of the cache hold them: 64 rows of memory per page, of which those past
// num_keys are NaN.
class Pages {
 public:
  Pages(Random& random, int num_keys, int width, bool is_bf16, int gap) {
    for (int first = 0; first < num_keys; first += kPageKeys) {
      pages_.push_back(std::make_unique<StoredMatrix>(kPageKeys, width, is_bf16, gap));
      for (int key = first; key < std::min(num_keys, first + kPageKeys); ++key) {
        for (int i = 0; i < width; ++i)
          pages_.back()->set(key - first, i, random.uniform(-1.0f, 1.0f));
      }
      pointers_.push_back(pages_.back()->data());
    }
  }
  const std::byte* const* pointers() const { return pointers_.data(); }
  std::size_t stride() const { return pages_.empty() ? 0 : pages_.front()->stride(); }
  double get(int key, int i) const {
    return static_cast<double>(
        pages_[static_cast<std::size_t>(key / kPageKeys)]->get(key % kPageKeys, i));
  }
  void set(int key, int i, float value) {
    pages_[static_cast<std::size_t>(key / kPageKeys)]->set(key % kPageKeys, i, value);
  }

 private:
  std::vector<std::unique_ptr<StoredMatrix>> pages_;
  std::vector<const std::byte*> pointers_;
};

struct Partial {
  std::vector<float> max, sum, out;  // out: [rows, dv]
};

struct Case {
  bool is_bf16 = true;
  int dk = 0;
  int dv = 0;
  float scale = 0;
  int first_key = 0;
};

class AttendTest : public KernelTest {
 protected:
  // Rows [first, first + rows) of q.
  Partial attend(const Case& c, const StoredMatrix& q, int first, int rows,
                 const std::vector<std::int32_t>& visible, const Pages& keys,
                 const Pages& values) const {
    const AttendKernels& kernels = c.is_bf16 ? table.attend_bf16 : table.attend_f32;
    const std::size_t out_stride = static_cast<std::size_t>(c.dv) + 3;
    const auto n = static_cast<std::size_t>(rows);
    Partial result{std::vector<float>(n, kNan), std::vector<float>(n, kNan), {}};
    std::vector<float> out(n * out_stride, kNan);
    Block scratch(kernels.scratch_bytes(rows, c.dk, c.dv));
    AttendArgs a;
    a.q = q.data() + static_cast<std::size_t>(first) * q.stride();
    a.q_stride = q.stride() / (c.is_bf16 ? 2 : 4);
    a.rows = rows;
    a.visible = visible.data() + first;
    a.num_keys = *std::max_element(visible.begin() + first, visible.begin() + first + rows);
    a.first_key = c.first_key;
    a.k_pages = keys.pointers();
    a.k_stride = keys.stride();
    a.v_pages = values.pointers();
    a.v_stride = values.stride();
    a.dk = c.dk;
    a.dv = c.dv;
    a.scale = c.scale;
    a.max = result.max.data();
    a.sum = result.sum.data();
    a.out = out.data();
    a.out_stride = out_stride;
    a.scratch = scratch.data();
    kernels.attend(a);
    for (std::size_t row = 0; row < n; ++row) {
      const float* from = out.data() + row * out_stride;
      result.out.insert(result.out.end(), from, from + c.dv);
      for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(std::isnan(from[c.dv + i])) << "written past the end of row " << row;
    }
    return result;
  }

  void expect_close(const Case& c, const StoredMatrix& q, const std::vector<std::int32_t>& visible,
                    const Pages& keys, const Pages& values, const Partial& got) const;
};

// The definition in double precision, with a bound on the error of each float32 operation.
void AttendTest::expect_close(const Case& c, const StoredMatrix& q,
                              const std::vector<std::int32_t>& visible, const Pages& keys,
                              const Pages& values, const Partial& got) const {
  // AMX multiplies the weights of the values as bfloat16; every other table keeps them float32.
  const double weight_epsilon = GetParam() == Isa::kAmx && c.is_bf16 ? kBf16Epsilon : 0;
  for (std::size_t row = 0; row < visible.size(); ++row) {
    const int n = visible[row];
    if (n <= c.first_key) {
      ASSERT_EQ(got.max[row], -kInf);
      ASSERT_EQ(got.sum[row], 0.0f);
      for (int i = 0; i < c.dv; ++i)
        ASSERT_EQ(got.out[row * static_cast<std::size_t>(c.dv) + static_cast<std::size_t>(i)],
                  0.0f);
      continue;
    }
    std::vector<double> score(static_cast<std::size_t>(n));
    double max = -std::numeric_limits<double>::infinity();
    double score_error = 0;
    for (int key = c.first_key; key < n; ++key) {
      double dot = 0;
      double magnitude = 0;
      for (int i = 0; i < c.dk; ++i) {
        const double term = static_cast<double>(q.get(static_cast<int>(row), i)) * keys.get(key, i);
        dot += term;
        magnitude += std::abs(term);
      }
      score[static_cast<std::size_t>(key)] = static_cast<double>(c.scale) * dot;
      max = std::max(max, score[static_cast<std::size_t>(key)]);
      score_error = std::max(score_error,
                             static_cast<double>(c.scale) * magnitude * (c.dk + 2) * kFloatEpsilon);
    }
    ASSERT_NEAR(got.max[row], max, score_error);
    // Relative to the kernel's own maximum, so that its error does not count in every weight.
    double sum = 0;
    std::vector<double> out(static_cast<std::size_t>(c.dv));
    std::vector<double> magnitude(static_cast<std::size_t>(c.dv));
    double spread = 0;
    for (int key = c.first_key; key < n; ++key) {
      const double exponent =
          score[static_cast<std::size_t>(key)] - static_cast<double>(got.max[row]);
      spread = std::max(spread, -exponent);
      const double p = std::exp(exponent);
      sum += p;
      for (int i = 0; i < c.dv; ++i) {
        out[static_cast<std::size_t>(i)] += p * values.get(key, i);
        magnitude[static_cast<std::size_t>(i)] += std::abs(p * values.get(key, i));
      }
    }
    // One weight: its score, the subtraction, the exponential (a few roundings); then n terms are
    // added.
    const double relative = 1.01 * (score_error + (spread + 4 + n) * kFloatEpsilon);
    ASSERT_NEAR(got.sum[row], sum, sum * relative) << "row " << row;
    for (int i = 0; i < c.dv; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_NEAR(got.out[row * static_cast<std::size_t>(c.dv) + at], out[at],
                  magnitude[at] * (relative + weight_epsilon))
          << "row " << row << " element " << i << " visible " << n;
    }
  }
}

void expect_same(const Partial& a, const Partial& b, std::size_t first, std::size_t rows,
                 std::size_t dv) {
  for (std::size_t row = 0; row < rows; ++row) {
    ASSERT_EQ(a.max[row], b.max[first + row]) << "row " << first + row;
    ASSERT_EQ(a.sum[row], b.sum[first + row]) << "row " << first + row;
    for (std::size_t i = 0; i < dv; ++i)
      ASSERT_EQ(a.out[row * dv + i], b.out[(first + row) * dv + i]) << "row " << first + row;
  }
}

std::vector<Case> head_sizes() {
  std::vector<Case> cases;
  for (const bool is_bf16 : {true, false}) {
    for (const int nope : {64, 96, 128, 192, 256}) {
      for (const int rope : {0, 32, 64}) {
        for (const int v : {64, 128, 256}) {
          cases.push_back(
              {is_bf16, nope + rope, v, 1.0f / std::sqrt(static_cast<float>(nope + rope))});
        }
      }
    }
    cases.push_back({is_bf16, 512 + 64, 512, 0.0625f});
    cases.push_back({is_bf16, 512, 512, 0.0625f});
    cases.push_back({is_bf16, 1, 1, 1.0f});
    cases.push_back({is_bf16, 33, 17, 2.0f});
    cases.push_back({is_bf16, 20, 100, 0.5f});
  }
  return cases;
}

TEST_P(AttendTest, every_head_size_agrees_with_double_precision) {
  Random random(11);
  for (const Case& c : head_sizes()) {
    for (const int num_keys : {3, 131}) {
      const int rows = 7;
      const StoredMatrix q = StoredMatrix::random(random, rows, c.dk, c.is_bf16, 5);
      const Pages keys(random, num_keys, c.dk, c.is_bf16, 3);
      const Pages values(random, num_keys, c.dv, c.is_bf16, 1);
      std::vector<std::int32_t> visible(rows);
      for (std::int32_t& n : visible) n = random.below(num_keys + 1);
      visible[1] = 0;
      visible[4] = num_keys;
      SCOPED_TRACE(testing::Message() << (c.is_bf16 ? "bf16" : "f32") << " dk " << c.dk << " dv "
                                      << c.dv << " keys " << num_keys);
      const Partial got = attend(c, q, 0, rows, visible, keys, values);
      ASSERT_NO_FATAL_FAILURE(expect_close(c, q, visible, keys, values, got));
    }
  }
}

TEST_P(AttendTest, every_number_of_keys_and_rows_agrees_with_double_precision) {
  Random random(12);
  for (const bool is_bf16 : {true, false}) {
    const Case c{is_bf16, 80, 48, 0.3f};
    for (const int num_keys : {1, 2, 5, 15, 16, 17, 63, 64, 65, 127, 193, 255, 256}) {
      for (const int rows : {1, 2, 3, 5, 16, 20, 33}) {
        const StoredMatrix q = StoredMatrix::random(random, rows, c.dk, is_bf16);
        const Pages keys(random, num_keys, c.dk, is_bf16, 0);
        const Pages values(random, num_keys, c.dv, is_bf16, 0);
        const std::vector<std::int32_t> visible(static_cast<std::size_t>(rows), num_keys);
        SCOPED_TRACE(testing::Message()
                     << (is_bf16 ? "bf16" : "f32") << " keys " << num_keys << " rows " << rows);
        const Partial got = attend(c, q, 0, rows, visible, keys, values);
        ASSERT_NO_FATAL_FAILURE(expect_close(c, q, visible, keys, values, got));
      }
    }
  }
}

TEST_P(AttendTest, values_may_be_the_first_part_of_the_keys) {
  Random random(13);
  for (const bool is_bf16 : {true, false}) {
    const Case c{is_bf16, 96, 64, 0.2f};
    const StoredMatrix q = StoredMatrix::random(random, 20, c.dk, is_bf16);
    const Pages latents(random, 200, c.dk, is_bf16, 0);
    const std::vector<std::int32_t> visible(20, 200);
    ASSERT_NO_FATAL_FAILURE(expect_close(c, q, visible, latents, latents,
                                         attend(c, q, 0, 20, visible, latents, latents)));
  }
}

TEST_P(AttendTest, a_row_alone_gives_the_bits_it_gives_among_others) {
  Random random(14);
  for (const bool is_bf16 : {true, false}) {
    for (const Case& c : {Case{is_bf16, 576, 512, 0.0625f}, Case{is_bf16, 40, 24, 0.5f}}) {
      const int rows = 37;
      const int num_keys = 150;
      const StoredMatrix q = StoredMatrix::random(random, rows, c.dk, is_bf16);
      const Pages keys(random, num_keys, c.dk, is_bf16, 0);
      const Pages values(random, num_keys, c.dv, is_bf16, 0);
      std::vector<std::int32_t> visible(static_cast<std::size_t>(rows));
      for (int row = 0; row < rows; ++row)
        visible[static_cast<std::size_t>(row)] = random.below(num_keys + 1);
      visible[8] = num_keys;
      const Partial all = attend(c, q, 0, rows, visible, keys, values);
      for (const int part : {1, 2, 5, 16, 20}) {
        for (int first = 0; first < rows; first += part) {
          const int count = std::min(part, rows - first);
          ASSERT_NO_FATAL_FAILURE(expect_same(attend(c, q, first, count, visible, keys, values),
                                              all, static_cast<std::size_t>(first),
                                              static_cast<std::size_t>(count),
                                              static_cast<std::size_t>(c.dv)));
        }
      }
    }
  }
}

TEST_P(AttendTest, what_a_row_does_not_see_does_not_reach_it) {
  Random random(15);
  for (const bool is_bf16 : {true, false}) {
    const Case c{is_bf16, 64, 64, 0.2f};
    const StoredMatrix q = StoredMatrix::random(random, 8, c.dk, is_bf16);
    Pages keys(random, 90, c.dk, is_bf16, 0);
    Pages values(random, 90, c.dv, is_bf16, 0);
    const std::vector<std::int32_t> visible{70, 90, 1, 69, 0, 70, 64, 33};
    const Partial before = attend(c, q, 0, 8, visible, keys, values);
    for (int key = 70; key < 90; ++key) {
      for (int i = 0; i < 64; ++i) {
        keys.set(key, i, 30.0f);
        values.set(key, i, -1e30f);
      }
    }
    const Partial after = attend(c, q, 0, 8, visible, keys, values);
    for (const std::size_t row : {0, 2, 3, 4, 5, 6, 7}) {
      EXPECT_EQ(before.max[row], after.max[row]);
      EXPECT_EQ(before.sum[row], after.sum[row]);
      for (std::size_t i = 0; i < 64; ++i)
        EXPECT_EQ(before.out[row * 64 + i], after.out[row * 64 + i]) << row;
    }
    EXPECT_NE(before.out[64], after.out[64]);
  }
}

TEST_P(AttendTest, keys_before_the_first_are_seen_by_nobody_whatever_they_hold) {
  Random random(18);
  for (const bool is_bf16 : {true, false}) {
    for (const int first_key : {1, 2, 15, 16, 17, 33, 64, 70, 199, 200}) {
      for (Case c : {Case{is_bf16, 576, 512, 0.0625f}, Case{is_bf16, 40, 24, 0.5f}}) {
        c.first_key = first_key;
        const int rows = 21, num_keys = 200;
        const StoredMatrix q = StoredMatrix::random(random, rows, c.dk, is_bf16);
        Pages keys(random, num_keys, c.dk, is_bf16, 0);
        Pages values(random, num_keys, c.dv, is_bf16, 0);
        for (int key = 0; key < first_key; ++key) {
          for (int i = 0; i < c.dk; ++i) keys.set(key, i, kNan);
          for (int i = 0; i < c.dv; ++i) values.set(key, i, kNan);
        }
        std::vector<std::int32_t> visible(static_cast<std::size_t>(rows));
        for (std::int32_t& n : visible) n = random.below(num_keys + 1);
        visible[0] = first_key;
        visible[3] = 0;
        visible[20] = num_keys;
        SCOPED_TRACE(testing::Message()
                     << (is_bf16 ? "bf16" : "f32") << " dk " << c.dk << " first key " << first_key);
        const Partial all = attend(c, q, 0, rows, visible, keys, values);
        ASSERT_NO_FATAL_FAILURE(expect_close(c, q, visible, keys, values, all));
        for (int row = 0; row < rows; row += 3) {
          ASSERT_NO_FATAL_FAILURE(expect_same(attend(c, q, row, 1, visible, keys, values), all,
                                              static_cast<std::size_t>(row), 1,
                                              static_cast<std::size_t>(c.dv)));
        }
      }
    }
  }
}

TEST_P(AttendTest, large_scores_neither_overflow_nor_lose_the_largest) {
  Random random(16);
  for (const bool is_bf16 : {true, false}) {
    const Case c{is_bf16, 64, 64, 100.0f};
    const StoredMatrix q = StoredMatrix::random(random, 6, c.dk, is_bf16);
    const Pages keys(random, 100, c.dk, is_bf16, 0);
    const Pages values(random, 100, c.dv, is_bf16, 0);
    const std::vector<std::int32_t> visible(6, 100);
    ASSERT_NO_FATAL_FAILURE(
        expect_close(c, q, visible, keys, values, attend(c, q, 0, 6, visible, keys, values)));
  }
}

TEST_P(AttendTest, merging_parts_gives_the_whole) {
  Random random(17);
  const int rows = 5;
  for (const int dv : {1, 16, 51}) {
    const auto n = static_cast<std::size_t>(rows * dv);
    // Rows: both parts, only the first, only the second, neither, and a part that vanishes beside
    // the other.
    std::vector<float> max_a{1.5f, 3.0f, -kInf, -kInf, 0.0f};
    std::vector<float> sum_a{4.0f, 2.0f, 0.0f, 0.0f, 1.0f};
    const std::vector<float> max_b{2.25f, -kInf, 7.0f, -kInf, 500.0f};
    const std::vector<float> sum_b{3.0f, 0.0f, 5.0f, 0.0f, 2.0f};
    std::vector<float> out_a = random.floats(n);
    std::vector<float> out_b = random.floats(n);
    for (int i = 0; i < dv; ++i) {
      const auto at = [dv](int row, int element) {
        return static_cast<std::size_t>(row * dv + element);
      };
      out_a[at(2, i)] = out_a[at(3, i)] = 0;
      out_b[at(1, i)] = out_b[at(3, i)] = 0;
    }
    const std::vector<float> first = out_a;
    table.attend_merge(rows, dv, max_a.data(), sum_a.data(), out_a.data(),
                       static_cast<std::size_t>(dv), max_b.data(), sum_b.data(), out_b.data(),
                       static_cast<std::size_t>(dv));
    EXPECT_EQ(max_a, (std::vector<float>{2.25f, 3.0f, 7.0f, -kInf, 500.0f}));
    const double e = std::exp(-0.75);
    EXPECT_NEAR(sum_a[0], 4 * e + 3, 8 * 6 * kFloatEpsilon);
    EXPECT_EQ(sum_a[1], 2.0f);
    EXPECT_EQ(sum_a[2], 5.0f);
    EXPECT_EQ(sum_a[3], 0.0f);
    EXPECT_EQ(sum_a[4], 2.0f);
    for (int i = 0; i < dv; ++i) {
      const auto at = [dv](int row, int element) {
        return static_cast<std::size_t>(row * dv + element);
      };
      EXPECT_NEAR(out_a[at(0, i)],
                  static_cast<double>(first[at(0, i)]) * e + static_cast<double>(out_b[at(0, i)]),
                  2 * 6 * kFloatEpsilon);
      EXPECT_EQ(out_a[at(1, i)], first[at(1, i)]);
      EXPECT_EQ(out_a[at(2, i)], out_b[at(2, i)]);
      EXPECT_EQ(out_a[at(3, i)], 0.0f);
      EXPECT_EQ(out_a[at(4, i)], out_b[at(4, i)]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, AttendTest, testing::ValuesIn(available_isas()), isa_test_name);

}  // namespace
}  // namespace glint::test
