// Every quantised form of a matrix: its values, its blocks, and what is refused.
#include "checkpoint/stored_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "quant_packers.h"
#include "tensor/ggml_blocks.h"

namespace glint {
namespace {

using packers::Fp4;
using packers::Fp8;
using packers::Int;
using packers::Matrix;
using packers::Packed;
using packers::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

Matrix random_matrix(std::int64_t rows, std::int64_t cols) {
  std::mt19937 engine(static_cast<unsigned>(rows * 1000 + cols));
  std::normal_distribution<float> normal(0.02f, 0.3f);
  Matrix m{rows, cols, {}};
  for (std::int64_t i = 0; i < rows * cols; ++i) m.values.push_back(normal(engine));
  return m;
}

class StoredMatrixTest : public testing::Test {
 protected:
  void open(const std::vector<Tensor>& tensors, const std::string& quantisation = "") {
    folder_.write("config.json",
                  quantisation.empty() ? "{}" : R"({"quantization_config":)" + quantisation + "}");
    packers::write_safetensors(folder_, "model.safetensors", tensors);
    auto opened = Checkpoint::open(folder_.path());
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    checkpoint_ = *opened;
    auto config = read_quant_config(*checkpoint_);
    ASSERT_TRUE(config.has_value()) << config.error().message;
    config_ = *config;
  }

  Result<std::shared_ptr<const StoredMatrix>> find() {
    return find_matrix(*checkpoint_, config_, "m.weight");
  }

  // The reading of one matrix, whole and by rows, and through blocks.
  std::string expect_values(const Matrix& m, const Packed& packed,
                            const std::string& quantisation = "") {
    open(packed.tensors, quantisation);
    const auto found = find();
    if (!found) {
      ADD_FAILURE() << found.error().message;
      return "";
    }
    const StoredMatrix& matrix = **found;
    SCOPED_TRACE(matrix.description());
    EXPECT_EQ(matrix.rows(), static_cast<std::size_t>(m.rows));
    EXPECT_EQ(matrix.cols(), static_cast<std::size_t>(m.cols));
    EXPECT_TRUE(matrix.check_values().has_value());
    std::vector<float> all(m.values.size());
    matrix.decode_rows(0, matrix.rows(), all.data());
    expect_scaled(all, packed.values, matrix.factor());
    std::vector<float> row(matrix.cols());
    for (std::size_t r = 0; r < matrix.rows(); ++r) {
      matrix.decode_rows(r, 1, row.data());
      EXPECT_TRUE(std::equal(row.begin(), row.end(),
                             all.begin() + static_cast<std::ptrdiff_t>(r * matrix.cols())));
    }
    if (matrix.has_blocks()) {
      const BlockSize block = block_size(matrix.type());
      const std::size_t per_row = matrix.cols() / block.elements;
      std::vector<std::byte> blocks(matrix.rows() * per_row * block.bytes);
      matrix.write_blocks(0, matrix.rows(), blocks.data());
      std::vector<float> decoded(all.size());
      decode_blocks(matrix.type(), blocks.data(), matrix.rows() * per_row, decoded.data());
      EXPECT_EQ(decoded, all);
    }
    return matrix.description();
  }

  std::string refusal() {
    const auto found = find();
    if (!found) return found.error().message;
    const Status values = (*found)->check_values();
    return values ? "accepted" : values.error().message;
  }

 private:
  static void expect_scaled(const std::vector<float>& got, const std::vector<float>& want,
                            float factor) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i] * factor, want[i], 1e-6f * std::abs(want[i])) << i;
  }

  TempFolder folder_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  QuantConfig config_;
};

TEST_F(StoredMatrixTest, fp8_blocks_of_any_size_with_partial_ones_at_the_ends) {
  const Matrix m = random_matrix(576, 200);
  EXPECT_EQ(expect_values(m, packers::pack_fp8("m", m, {})),
            "FP8 (e4m3, blocks of 128 x 128, F32 scales)");
  const std::string config = R"({"quant_method":"fp8","weight_block_size":[32,64]})";
  EXPECT_EQ(
      expect_values(m, packers::pack_fp8("m", m, {32, 64, "weight_scale_inv", "BF16"}), config),
      "FP8 (e4m3, blocks of 32 x 64, BF16 scales)");
  EXPECT_EQ(expect_values(m, packers::pack_fp8("m", m, {48, 40, "weight_scale", "F16"})),
            "FP8 (e4m3, blocks of 48 x 40, F16 scales)");
  EXPECT_EQ(expect_values(m, packers::pack_fp8("m", m, {128, 128, "weight_scale_inv", "U8"})),
            "FP8 (e4m3, blocks of 128 x 128, e8m0 scales)");
  EXPECT_EQ(expect_values(m, packers::pack_fp8("m", m, {128, 128, "weight_scale_inv", "F8_E8M0"})),
            "FP8 (e4m3, blocks of 128 x 128, e8m0 scales)");
  Packed apart = packers::pack_fp8("m", m, {128, 128, "weight_scale"});
  apart.tensors[1].shape = {5, 1, 2, 1};
  EXPECT_EQ(expect_values(m, apart), "FP8 (e4m3, blocks of 128 x 128, F32 scales)");
  // The tensors are right where the config is not.
  const std::string wrong = R"({"quant_method":"fp8","weight_block_size":[64,64]})";
  EXPECT_EQ(expect_values(m, packers::pack_fp8("m", m, {}), wrong),
            "FP8 (e4m3, blocks of 128 x 128, F32 scales)");
}

TEST_F(StoredMatrixTest, fp8_with_a_scale_a_row_or_one_for_all) {
  const Matrix m = random_matrix(37, 72);
  for (const std::string dtype : {"F32", "BF16"}) {
    for (const int dims : {1, 2}) {
      EXPECT_EQ(expect_values(m, packers::pack_fp8("m", m, {1, 0, "weight_scale", dtype, dims})),
                "FP8 (e4m3, one scale a row, " + dtype + " scales)");
    }
  }
  for (const int dims : {0, 1, 2}) {
    EXPECT_EQ(expect_values(m, packers::pack_fp8("m", m, {0, 0, "weight_scale", "F32", dims})),
              "FP8 (e4m3, one scale a matrix, F32 scales)");
  }
  EXPECT_EQ(expect_values(m, packers::pack_fp8("m", m, {1, 8, "weight_scale", "U8"})),
            "FP8 (e4m3, blocks of 1 x 8, e8m0 scales)");
}

TEST_F(StoredMatrixTest, fp4_of_both_makers_and_both_kinds) {
  for (const std::int64_t cols : {64, 96, 128}) {  // NVFP4's blocks have 64 columns
    const Matrix m = random_matrix(17, cols);
    for (const Fp4 kind : {Fp4::kModelOpt, Fp4::kCompressed}) {
      EXPECT_EQ(expect_values(m, packers::pack_fp4("m", m, kind)),
                "NVFP4 (e2m1, groups of 16, e4m3 scales, global scale)");
    }
    for (const Fp4 kind : {Fp4::kMx, Fp4::kMxPacked}) {
      EXPECT_EQ(expect_values(m, packers::pack_fp4("m", m, kind)),
                "MXFP4 (e2m1, groups of 32, e8m0 scales)");
    }
  }
  const Matrix odd = random_matrix(5, 112);
  EXPECT_NE(expect_values(odd, packers::pack_fp4("m", odd, Fp4::kModelOpt)), "");
}

TEST_F(StoredMatrixTest, negative_group_scales_of_nvfp4_turn_signs) {
  const Matrix m = random_matrix(4, 64);
  Packed packed = packers::pack_fp4("m", m, Fp4::kModelOpt);
  packed.tensors[1].bytes[0] = static_cast<char>(packed.tensors[1].bytes[0] | 0x80);
  for (std::size_t i = 0; i < 16; ++i) packed.values[i] = -packed.values[i];
  expect_values(m, packed);
}

TEST_F(StoredMatrixTest, integers_of_compressed_tensors) {
  for (const int bits : {4, 8}) {
    for (const std::int64_t group : {0, 32, 64, 128}) {
      for (const bool symmetric : {true, false}) {
        for (const std::string dtype : {"BF16", "F16", "F32"}) {
          const Matrix m = random_matrix(19, 256);
          const Packed packed = packers::pack_compressed("m", m, {bits, group, symmetric, dtype});
          EXPECT_EQ(expect_values(m, packed),
                    "INT" + std::to_string(bits) +
                        (symmetric ? " (symmetric, " : " (zero points, ") +
                        (group == 0 ? "one group a row" : "groups of " + std::to_string(group)) +
                        ", " + dtype + " scales)");
        }
      }
    }
  }
  // No whole number of words, blocks or groups.
  const Matrix m = random_matrix(9, 44);
  expect_values(m, packers::pack_compressed("m", m, {4, 0, true, "BF16"}));
  expect_values(m, packers::pack_compressed("m", m, {8, 11, false, "F32"}));
  const Matrix long_rows = random_matrix(3, 160);
  const std::string config = R"({"quant_method":"compressed-tensors","config_groups":{"group_0":
      {"weights":{"num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":128}}}})";
  EXPECT_EQ(expect_values(long_rows,
                          packers::pack_compressed("m", long_rows, {4, 128, true, "BF16"}), config),
            "INT4 (symmetric, groups of 128, BF16 scales)");
}

TEST_F(StoredMatrixTest, zero_points_that_are_not_packed) {
  const Matrix m = random_matrix(11, 64);
  Packed packed = packers::pack_compressed("m", m, {4, 32, false, "BF16"});
  const packers::Codes q = packers::quantise(m, {4, 32, false, "BF16"});
  std::string zeros;
  for (const std::uint32_t zero : q.zeros) zeros += static_cast<char>(static_cast<int>(zero) - 8);
  packed.tensors.back() = {"m.weight_zero_point", "I8", {11, 2}, zeros};
  expect_values(m, packed);
}

TEST_F(StoredMatrixTest, bytes_of_compressed_tensors) {
  const Matrix m = random_matrix(21, 96);
  for (const bool symmetric : {true, false}) {
    for (const std::string dtype : {"BF16", "F32"}) {
      for (const std::int64_t group : {0, 32})
        expect_values(m, packers::pack_bytes("m", m, {8, group, symmetric, dtype}));
    }
  }
}

TEST_F(StoredMatrixTest, awq_in_its_order) {
  const Matrix m = random_matrix(40, 128);
  for (const std::int64_t group : {0, 32, 128}) {
    const std::string description =
        expect_values(m, packers::pack_awq("m", m, {4, group, false, "F16"}),
                      R"({"quant_method":"awq","bits":4,"version":"gemm"})");
    EXPECT_THAT(description, HasSubstr("INT4 (AWQ, zero points"));
  }
}

TEST_F(StoredMatrixTest, gptq_of_both_versions) {
  const Matrix m = random_matrix(24, 128);
  for (const int bits : {4, 8}) {
    for (const bool symmetric : {true, false}) {
      const Int form{bits, 64, symmetric, "F16"};
      const std::string config = R"({"quant_method":"gptq","bits":)" + std::to_string(bits) +
                                 R"(,"group_size":64,"desc_act":false,"sym":true)";
      expect_values(m, packers::pack_gptq("m", m, form, 1), config + "}");
      expect_values(m, packers::pack_gptq("m", m, form, 1),
                    config + R"(,"checkpoint_format":"gptq"})");
      expect_values(m, packers::pack_gptq("m", m, form, 0),
                    config + R"(,"checkpoint_format":"gptq_v2"})");
      // A module with other bits than the config says.
      expect_values(m, packers::pack_gptq("m", m, form, 1), R"({"quant_method":"gptq","bits":4})");
    }
  }
}

TEST_F(StoredMatrixTest, a_plain_matrix_is_what_it_was) {
  const Matrix m = random_matrix(3, 8);
  for (const std::string dtype : {"F32", "F16", "BF16"}) {
    Packed packed{{{"m.weight", dtype, {3, 8}, packers::float_bytes(m.values, dtype)}}, {}};
    for (const float value : m.values) packed.values.push_back(packers::rounded(value, dtype));
    EXPECT_EQ(expect_values(m, packed), dtype);
  }
}

// ---- refusals

TEST_F(StoredMatrixTest, a_part_that_is_missing_is_named) {
  const Matrix m = random_matrix(16, 64);
  const std::string awq = R"({"quant_method":"awq"})", gptq = R"({"quant_method":"gptq"})";
  const std::string asymmetric = R"({"quant_method":"compressed-tensors","config_groups":{"g":
      {"weights":{"num_bits":4,"type":"int","symmetric":false}}}})";
  struct Case {
    Packed packed;
    const char* missing;
    std::string config = {};
  };
  const Case cases[] = {
      {packers::pack_fp8("m", m, {}), "weight_scale_inv"},
      {packers::pack_fp4("m", m, Fp4::kModelOpt), "weight_scale"},
      {packers::pack_fp4("m", m, Fp4::kModelOpt), "weight_scale_2"},
      {packers::pack_fp4("m", m, Fp4::kMx), "weight_scale"},
      {packers::pack_compressed("m", m, {}), "weight_scale"},
      {packers::pack_compressed("m", m, {}), "weight_shape"},
      {packers::pack_compressed("m", m, {4, 32, false}), "weight_zero_point", asymmetric},
      {packers::pack_bytes("m", m, {}), "weight_scale"},
      {packers::pack_awq("m", m, {4, 32, false, "F16"}), "qzeros", awq},
      {packers::pack_gptq("m", m, {4, 32, true, "F16"}, 1), "scales", gptq},
  };
  for (const Case& c : cases) {
    std::vector<Tensor> tensors = c.packed.tensors;
    const std::size_t n = std::erase_if(
        tensors, [&](const Tensor& t) { return t.name == std::string("m.") + c.missing; });
    ASSERT_EQ(n, 1u) << c.missing;
    open(tensors, c.config);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(std::string("m.") + c.missing), HasSubstr("missing")));
  }
}

TEST_F(StoredMatrixTest, parts_of_other_shapes_and_types_are_named) {
  const Matrix m = random_matrix(16, 64);
  struct Case {
    Packed packed;
    std::size_t tensor;
    const char* dtype;
    std::vector<std::int64_t> shape;
    std::size_t nbytes;
    std::string config = {};
  };
  const std::string awq = R"({"quant_method":"awq"})", gptq = R"({"quant_method":"gptq"})";
  const Case cases[] = {
      {packers::pack_fp8("m", m, {}), 1, "F32", {2, 65}, 520},
      {packers::pack_fp8("m", m, {}), 1, "F32", {0, 1}, 0},
      {packers::pack_fp8("m", m, {}), 1, "F32", {3}, 12},
      {packers::pack_fp8("m", m, {}), 1, "I32", {1, 1}, 4},
      {packers::pack_fp8("m", m, {}), 0, "F8_E4M3", {4, 4, 64}, 1024},
      {packers::pack_fp8("m", m, {}), 0, "F8_E4M3", {0, 64}, 0},
      {packers::pack_fp8("m", m, {}), 0, "F8_E5M2", {16, 64}, 1024},
      {packers::pack_fp4("m", m, Fp4::kModelOpt), 1, "F8_E4M3", {16, 8}, 128},
      {packers::pack_fp4("m", m, Fp4::kModelOpt), 1, "F32", {16, 4}, 256},
      {packers::pack_fp4("m", m, Fp4::kModelOpt), 2, "F32", {16}, 64},
      {packers::pack_fp4("m", m, Fp4::kModelOpt), 2, "I64", {}, 8},
      {packers::pack_fp4("m", m, Fp4::kMx), 1, "U8", {16, 3}, 48},
      {packers::pack_compressed("m", m, {}), 0, "I32", {16, 3}, 192},
      {packers::pack_compressed("m", m, {}), 0, "I64", {16, 8}, 1024},
      {packers::pack_compressed("m", m, {}), 1, "BF16", {15, 2}, 60},
      {packers::pack_compressed("m", m, {}), 1, "BF16", {16, 0}, 0},
      {packers::pack_compressed("m", m, {}), 1, "BF16", {16, 65}, 2080},
      {packers::pack_compressed("m", m, {}), 1, "U8", {16, 2}, 32},
      {packers::pack_compressed("m", m, {}), 2, "I64", {3}, 24},
      {packers::pack_compressed("m", m, {}), 2, "F32", {2}, 8},
      {packers::pack_compressed("m", m, {4, 32, false}), 3, "I32", {16, 2}, 128},
      {packers::pack_compressed("m", m, {4, 32, false}), 3, "F32", {2, 2}, 16},
      {packers::pack_bytes("m", m, {}), 1, "BF16", {2, 16}, 64},
      {packers::pack_awq("m", m, {4, 32, false, "F16"}), 0, "U8", {64, 2}, 128, awq},
      {packers::pack_awq("m", m, {4, 32, false, "F16"}), 1, "I32", {2, 16}, 128, awq},
      {packers::pack_awq("m", m, {4, 32, false, "F16"}), 2, "F16", {1, 17}, 34, awq},
      {packers::pack_gptq("m", m, {4, 32, true, "F16"}, 1), 1, "I32", {2, 16}, 128, gptq},
      {packers::pack_gptq("m", m, {4, 32, true, "F16"}, 1), 2, "F16", {0, 16}, 0, gptq},
      {packers::pack_gptq("m", m, {4, 32, true, "F16"}, 1), 3, "I32", {63}, 252, gptq},
      {packers::pack_gptq("m", m, {4, 32, true, "F16"}, 1), 3, "I64", {64}, 512, gptq},
  };
  for (const Case& c : cases) {
    std::vector<Tensor> tensors = c.packed.tensors;
    Tensor& changed = tensors[c.tensor];
    changed.dtype = c.dtype;
    changed.shape = c.shape;
    changed.bytes.assign(c.nbytes, '\1');
    SCOPED_TRACE(changed.name + " " + c.dtype);
    open(tensors, c.config);
    EXPECT_THAT(refusal(), HasSubstr("m."));
    EXPECT_NE(refusal(), "accepted");
  }
}

// Whatever shapes and types the parts have: refused, or read within their bytes (which the dev
// build checks at every element).
TEST_F(StoredMatrixTest, parts_of_any_shape_and_type_are_refused_or_read_within_their_bytes) {
  const Matrix m = random_matrix(16, 64);
  const std::pair<Packed, const char*> forms[] = {
      {packers::pack_fp8("m", m, {}), ""},
      {packers::pack_fp4("m", m, Fp4::kModelOpt), ""},
      {packers::pack_fp4("m", m, Fp4::kMx), ""},
      {packers::pack_compressed("m", m, {4, 32, false}), ""},
      {packers::pack_compressed("m", m, {8, 16, true}), ""},
      {packers::pack_bytes("m", m, {8, 32, false}), ""},
      {packers::pack_awq("m", m, {4, 32, false, "F16"}),
       R"({"quant_method":"awq","group_size":48})"},
      {packers::pack_gptq("m", m, {4, 32, true, "F16"}, 1), R"({"quant_method":"gptq","bits":8})"},
  };
  const std::pair<const char*, std::size_t> types[] = {{"F32", 4}, {"BF16", 2},   {"F16", 2},
                                                       {"U8", 1},  {"I8", 1},     {"I32", 4},
                                                       {"I64", 8}, {"F8_E4M3", 1}};
  const std::int64_t sizes[] = {0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 64};
  std::mt19937 engine(11);
  const auto pick = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(engine);
  };
  int accepted = 0;
  for (int round = 0; round < 500; ++round) {
    const auto& [packed, config] = forms[pick(std::size(forms))];
    std::vector<Tensor> tensors = packed.tensors;
    Tensor& changed = tensors[pick(tensors.size())];
    std::size_t width = changed.bytes.size(), count = 1;
    for (const std::int64_t dim : changed.shape) width /= static_cast<std::size_t>(dim);
    if (pick(4) == 0) {
      const auto& type = types[pick(std::size(types))];
      changed.dtype = type.first;
      width = type.second;
    }
    if (pick(3) == 0) changed.shape.resize(pick(4));
    for (std::int64_t& dim : changed.shape) {
      if (dim == 0 || pick(2) == 0) dim = sizes[pick(std::size(sizes))];
      count *= static_cast<std::size_t>(dim);
    }
    changed.bytes.resize(count * width, '\1');
    open(tensors, config);
    const auto found = find();
    if (!found) {
      EXPECT_NE(found.error().message, "");
      continue;
    }
    ++accepted;
    const StoredMatrix& matrix = **found;
    (void)matrix.check_values();
    std::vector<float> values(matrix.rows() * matrix.cols());
    matrix.decode_rows(0, matrix.rows(), values.data());
    if (matrix.kind() == StoredMatrix::Kind::kF8) {
      std::vector<float> scales(matrix.grid().rows * matrix.grid().cols);
      matrix.write_grid(scales.data());
    }
    if (!matrix.has_blocks()) continue;
    const BlockSize block = block_size(matrix.type());
    std::vector<std::byte> blocks(values.size() / block.elements * block.bytes);
    matrix.write_blocks(0, matrix.rows(), blocks.data());
  }
  EXPECT_GT(accepted, 20);
}

TEST_F(StoredMatrixTest, what_contradicts_itself_is_refused) {
  const Matrix m = random_matrix(16, 64);
  auto two_scales = packers::pack_fp8("m", m, {}).tensors;
  two_scales.push_back({"m.weight_scale", "F32", {1, 1}, std::string(4, '\0')});
  open(two_scales);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("m.weight_scale_inv"), HasSubstr("which one")));

  auto two_globals = packers::pack_fp4("m", m, Fp4::kModelOpt).tensors;
  two_globals.push_back({"m.weight_global_scale", "F32", {}, packers::float_bytes({1}, "F32")});
  open(two_globals);
  EXPECT_THAT(refusal(), HasSubstr("m.weight_global_scale"));

  for (const float global : {0.0f, -1.0f, std::nanf("")}) {
    auto tensors = packers::pack_fp4("m", m, Fp4::kModelOpt).tensors;
    tensors[2].bytes = packers::float_bytes({global}, "F32");
    open(tensors);
    EXPECT_THAT(refusal(), HasSubstr("m.weight_scale_2"));
  }

  const std::string symmetric = R"({"quant_method":"compressed-tensors","config_groups":{"g":
      {"weights":{"num_bits":4,"type":"int","symmetric":true}}}})";
  open(packers::pack_compressed("m", m, {4, 32, false}).tensors, symmetric);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("m.weight_zero_point"), HasSubstr("symmetric")));

  auto shape = packers::pack_compressed("m", m, {}).tensors;
  shape[2].bytes.assign(16, '\xff');
  open(shape);
  EXPECT_THAT(refusal(), HasSubstr("m.weight_shape"));
}

TEST_F(StoredMatrixTest, awq_and_gptq_want_a_config_that_says_so) {
  const Matrix m = random_matrix(16, 64);
  for (const char* config : {"", R"({"quant_method":"gptq"})"}) {
    open(packers::pack_awq("m", m, {4, 32, false, "F16"}).tensors, config);
    EXPECT_THAT(refusal(), AllOf(HasSubstr("m.qweight"), HasSubstr("AWQ")));
  }
  for (const char* config : {"", R"({"quant_method":"awq"})"}) {
    open(packers::pack_gptq("m", m, {4, 32, true, "F16"}, 1).tensors, config);
    EXPECT_THAT(refusal(), AllOf(HasSubstr("m.qweight"), HasSubstr("GPTQ")));
  }
}

TEST_F(StoredMatrixTest, columns_out_of_order_are_refused) {
  const Matrix m = random_matrix(16, 64);
  auto tensors = packers::pack_gptq("m", m, {4, 32, true, "F16"}, 1).tensors;
  std::swap(tensors[3].bytes[0], tensors[3].bytes[4 * 63]);
  open(tensors, R"({"quant_method":"gptq","desc_act":true})");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("m.g_idx"), HasSubstr("desc_act")));

  auto packed = packers::pack_compressed("m", m, {}).tensors;
  packed.push_back({"m.weight_g_idx", "I32", {64}, std::string(256, '\0')});
  open(packed);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("m.weight_g_idx"), HasSubstr("not supported")));
}

TEST(PlaceOf, names_say_what_tensors_are_for) {
  EXPECT_EQ(place_of("a.weight").role, TensorRole::kWhole);
  EXPECT_EQ(place_of("a.weight_packed").matrix, "a.weight");
  EXPECT_EQ(place_of("a.qweight").role, TensorRole::kCodes);
  for (const char* part : {"a.weight_scale", "a.weight_scale_inv", "a.weight_scale_2", "a.qzeros",
                           "a.scales", "a.g_idx", "a.weight_zero_point", "a.weight_shape"}) {
    EXPECT_EQ(place_of(part).role, TensorRole::kPart) << part;
    EXPECT_EQ(place_of(part).matrix, "a.weight") << part;
  }
  for (const char* unread : {"a.input_scale", "a.k_proj.k_scale", "a.v_scale", "a.k_zero_point",
                             "a.input_global_scale"}) {
    EXPECT_EQ(place_of(unread).role, TensorRole::kUnread) << unread;
  }
  EXPECT_EQ(place_of("a.e_score_correction_bias").role, TensorRole::kWhole);
}

}  // namespace
}  // namespace glint
