// Quantised safetensors checkpoints: the golden cases against transformers on the dequantised
// weights, and every other form against the same model with the values spelled out in float32.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "../base/temp_folder.h"
#include "../checkpoint/quant_packers.h"
#include "base/log.h"
#include "checkpoint/stored_matrix.h"
#include "golden.h"
#include "models/tensor_binder.h"
#include "models/weight_form.h"

namespace glint::golden {
namespace {

using packers::Fp4;
using packers::Matrix;
using packers::Packed;
using packers::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

Runner::Options with(Isa isa, Compute compute) {
  Runner::Options options;
  options.isa = isa;
  options.compute = compute;
  return options;
}

// Positions that choose the same experts in both must be near each other on average; those whose
// context chose others may be further off.
void expect_near(Runner& exact, Runner& rounded,
                 const std::vector<std::vector<std::int32_t>>& prompts, double bound) {
  double total = 0, judged = 0, positions = 0;
  for (const auto& ids : prompts) {
    exact.cache().clear_prefixes();
    rounded.cache().clear_prefixes();
    const auto same = same_experts(exact.states(ids), rounded.states(ids), ids.size());
    const auto kl = kl_of_rows(exact.logits(ids, 0), rounded.logits(ids, 0), exact.vocab());
    for (std::size_t row = 0; row < kl.size(); ++row) {
      if (!same[row]) continue;
      total += kl[row];
      ++judged;
    }
    positions += static_cast<double>(kl.size());
  }
  EXPECT_LT(total / judged, bound);
  EXPECT_GT(4 * judged, positions);
}

std::vector<std::vector<std::int32_t>> prompts_of(const Case& golden) {
  std::vector<std::vector<std::int32_t>> prompts;
  for (int p = 0; p < golden.num_prompts(); ++p) prompts.push_back(golden.prompt(p));
  return prompts;
}

// ---- golden cases

const char* const kCases[] = {"glm4_moe_lite_fp8",      "glm4_moe_lite_nvfp4",
                              "glm4_moe_nvfp4",         "glm4_moe_fp8_channel",
                              "glm4_moe_int4_g128",     "glm4_moe_int4_g128_asym",
                              "glm4_moe_lite_int4_g32", "glm5_next_fp8"};

class QuantisedGolden : public testing::TestWithParam<std::tuple<const char*, Isa>> {
 protected:
  Case golden_{std::get<0>(GetParam())};
  Isa isa_ = std::get<1>(GetParam());
};

TEST_P(QuantisedGolden, f32_logits_are_those_of_the_dequantised_weights) {
  for (const bool mapped : {false, true}) {
    Runner::Options options = with(isa_, Compute::kF32);
    options.placement = mapped ? WeightPlacement::kMapped : WeightPlacement::kResident;
    options.repack = !mapped;
    Runner runner(golden_.folder(), options);
    for (const int chunk : {0, 7}) {
      for (int p = 0; p < golden_.num_prompts(); ++p) {
        runner.cache().clear_prefixes();
        EXPECT_LE(max_difference(golden_.expected(fmt::format("prompt{}.logits", p)).values,
                                 runner.logits(golden_.prompt(p), chunk)),
                  golden_.tolerance(p))
            << "prompt " << p << " chunk " << chunk;
      }
    }
  }
}

TEST_P(QuantisedGolden, f32_states_match_layer_by_layer) {
  Runner runner(golden_.folder(), with(isa_, Compute::kF32));
  const auto states = runner.states(golden_.prompt(golden_.bisect_prompt()));
  int compared = 0;
  for (const auto& [name, values] : states) {
    if (name.find("router") != std::string::npos) continue;
    const std::string stored = fmt::format("prompt{}.{}", golden_.bisect_prompt(), name);
    EXPECT_LE(max_difference(golden_.expected(stored).values, values), 1e-3) << name;
    ++compared;
  }
  // With streams six more a layer, and what each layer with a cache attends to.
  const int layers = runner.model().info().num_layers;
  const bool has_streams = states.contains("layer0.attn_hc.comb");
  EXPECT_EQ(compared, 2 + 3 * layers +
                          (has_streams ? 6 * layers + runner.model().cache_spec().num_layers : 0));
}

TEST_P(QuantisedGolden, f32_greedy_continuations_are_identical) {
  Runner runner(golden_.folder(), with(isa_, Compute::kF32));
  for (int p = 0; p < golden_.num_prompts(); ++p) {
    const auto& want = golden_.expected(fmt::format("prompt{}.greedy", p)).values;
    const auto got = runner.greedy(golden_.prompt(p), static_cast<int>(want.size()), 0);
    EXPECT_EQ(std::vector<float>(got.begin(), got.end()), want) << "prompt " << p;
  }
}

TEST_P(QuantisedGolden, stored_precision_stays_close_where_the_same_experts_are_chosen) {
  Runner exact(golden_.folder(), with(isa_, Compute::kF32));
  Runner rounded(golden_.folder(), with(isa_, Compute::kBf16));
  // A recurrence and residual streams carry more roundings along than a plain residual.
  const bool has_streams = exact.model().cache_spec().state_bytes > 0;
  expect_near(exact, rounded, prompts_of(golden_), has_streams ? 3e-2 : 1e-2);
}

TEST_P(QuantisedGolden, the_same_bits_however_the_work_is_cut_and_wherever_weights_lie) {
  Runner::Options options = with(isa_, Compute::kBf16);
  options.form = LatentForm::kAbsorbed;
  options.threads = 1;
  Runner whole(golden_.folder(), options);
  const auto prompts = prompts_of(golden_);
  std::vector<std::vector<float>> want;
  for (const auto& ids : prompts) {
    whole.cache().clear_prefixes();
    want.push_back(whole.logits(ids, 0));
  }
  options.threads = 3;
  for (const bool mapped : {false, true}) {
    options.placement = mapped ? WeightPlacement::kMapped : WeightPlacement::kResident;
    options.repack = !mapped;
    Runner runner(golden_.folder(), options);
    EXPECT_EQ(runner.logits_together(prompts, mapped ? 0 : 7), want) << "mapped " << mapped;
  }
}

INSTANTIATE_TEST_SUITE_P(AllCasesAndTables, QuantisedGolden,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::ValuesIn(tested_isas())),
                         [](const auto& param) {
                           return fmt::format("{}_{}", std::get<0>(param.param),
                                              isa_name(std::get<1>(param.param)));
                         });

// ---- the other forms, made of a golden model

struct Form {
  const char* name;
  const char* config;  // quantization_config
  bool (*fits)(const Matrix&);
  Packed (*pack)(const std::string& stem, const Matrix&);
};

bool groups_of_32(const Matrix& m) {
  return m.cols % 32 == 0;
}

const Form kForms[] = {
    {"fp8_blocks_of_48", R"({"quant_method":"fp8","weight_block_size":[48,40]})",
     [](const Matrix&) { return true; },
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_fp8(stem, m, {48, 40, "weight_scale_inv", "BF16"});
     }},
    {"fp8_exponents", R"({"quant_method":"fp8","weight_block_size":[128,128]})",
     [](const Matrix&) { return true; },
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_fp8(stem, m, {128, 128, "weight_scale_inv", "F8_E8M0"});
     }},
    {"fp8_tensor", R"({"quant_method":"modelopt","quant_algo":"FP8"})",
     [](const Matrix&) { return true; },
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_fp8(stem, m, {0, 0, "weight_scale", "F32", 0});
     }},
    {"fp8_rows", R"({"quant_method":"fbgemm_fp8"})", [](const Matrix&) { return true; },
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_fp8(stem, m, {1, 0, "weight_scale", "F32", 1});
     }},
    {"nvfp4_compressed_tensors",
     R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized"})",
     [](const Matrix& m) { return m.cols % 16 == 0; },
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_fp4(stem, m, Fp4::kCompressed);
     }},
    {"mxfp4", R"({"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized"})",
     groups_of_32,
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_fp4(stem, m, Fp4::kMxPacked);
     }},
    {"int4_rows_f16", R"({"quant_method":"compressed-tensors","format":"pack-quantized"})",
     [](const Matrix&) { return true; },
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_compressed(stem, m, {4, 0, true, "F16"});
     }},
    {"int4_f32_with_zeros", R"({"quant_method":"compressed-tensors","format":"pack-quantized"})",
     groups_of_32,
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_compressed(stem, m, {4, 32, false, "F32"});
     }},
    {"int8_packed", R"({"quant_method":"compressed-tensors","format":"pack-quantized"})",
     groups_of_32,
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_compressed(stem, m, {8, 32, true, "BF16"});
     }},
    {"int8_with_zeros", R"({"quant_method":"compressed-tensors","format":"pack-quantized"})",
     groups_of_32,
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_compressed(stem, m, {8, 32, false, "BF16"});
     }},
    {"int8_bytes", R"({"quant_method":"compressed-tensors","format":"int-quantized"})",
     [](const Matrix&) { return true; },
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_bytes(stem, m, {8, 0, true, "F32"});
     }},
    {"awq", R"({"quant_method":"awq","bits":4,"group_size":32,"version":"gemm"})",
     [](const Matrix& m) { return m.cols % 32 == 0 && m.rows % 8 == 0; },
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_awq(stem, m, {4, 32, false, "F16"});
     }},
    {"gptq", R"({"quant_method":"gptq","bits":4,"group_size":32,"sym":true,"desc_act":false})",
     [](const Matrix& m) { return m.cols % 32 == 0 && m.rows % 8 == 0; },
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_gptq(stem, m, {4, 32, true, "F16"}, 1);
     }},
    {"gptq_v2_of_8_bits", R"({"quant_method":"gptq","bits":8,"checkpoint_format":"gptq_v2"})",
     [](const Matrix& m) { return m.cols % 32 == 0 && m.rows % 8 == 0; },
     [](const std::string& stem, const Matrix& m) {
       return packers::pack_gptq(stem, m, {8, 32, false, "F16"}, 0);
     }},
};

// A golden model's tensors, with its matrices, but for routers and ends, in another form, or in
// float32 with the same values.
class Remade {
 public:
  using Pack = std::function<Packed(const std::string& stem, const Matrix&)>;

  // `pack` gives no tensors for what it leaves as it is.
  Remade(const std::string& name, const std::string& config, const Pack& pack) {
    const Case golden(name);
    prompts_ = prompts_of(golden);
    const auto checkpoint = *Checkpoint::open(golden.folder());
    const QuantConfig quantisation = *read_quant_config(*checkpoint);
    std::vector<Tensor> packed, plain;
    for (const auto& [tensor_name, tensor] : checkpoint->tensors()) {
      const auto [role, matrix_name] = place_of(tensor_name);
      if (role == TensorRole::kPart || role == TensorRole::kUnread) continue;
      const bool inner = matrix_name.find(".self_attn.") != std::string::npos ||
                         matrix_name.find(".mlp.") != std::string::npos;
      const auto found = find_matrix(*checkpoint, quantisation, matrix_name);
      if (tensor.shape.size() != 2 || !inner || matrix_name.find(".gate.") != std::string::npos) {
        const Tensor same{
            tensor_name,
            std::string(dtype_name(tensor.dtype)),
            tensor.shape,
            {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()}};
        packed.push_back(same);
        plain.push_back(same);
        continue;
      }
      Matrix m{static_cast<std::int64_t>((*found)->rows()),
               static_cast<std::int64_t>((*found)->cols()),
               {}};
      m.values.resize((*found)->rows() * (*found)->cols());
      (*found)->decode_rows(0, (*found)->rows(), m.values.data());
      for (float& value : m.values) value *= (*found)->factor();
      Packed made = pack(matrix_name.substr(0, matrix_name.size() - 7), m);
      if (made.tensors.empty()) {
        made = {{{matrix_name, "F32", {m.rows, m.cols}, packers::float_bytes(m.values, "F32")}},
                m.values};
      } else {
        ++count_;
      }
      packed.insert(packed.end(), made.tensors.begin(), made.tensors.end());
      plain.push_back(
          {matrix_name, "F32", {m.rows, m.cols}, packers::float_bytes(made.values, "F32")});
    }
    Json json = checkpoint->config();
    json.set("quantization_config", Json());
    plain_.write("config.json", json.dump());
    packers::write_safetensors(plain_, "model.safetensors", plain);
    if (!config.empty()) json.set("quantization_config", *parse_json(config));
    packed_.write("config.json", json.dump());
    packers::write_safetensors(packed_, "model.safetensors", packed);
  }

  int count() const { return count_; }  // of matrices that pack() took
  const std::filesystem::path& packed() const { return packed_.path(); }
  const std::filesystem::path& plain() const { return plain_.path(); }
  const std::vector<std::vector<std::int32_t>>& prompts() const { return prompts_; }

 private:
  TempFolder packed_, plain_;
  std::vector<std::vector<std::int32_t>> prompts_;
  int count_ = 0;
};

class QuantisedForm : public testing::TestWithParam<std::tuple<Form, const char*>> {};

TEST_P(QuantisedForm, computes_the_values_it_stands_for) {
  const auto& [form, model] = GetParam();
  const Remade remade(model, form.config, [&](const std::string& stem, const Matrix& m) {
    return form.fits(m) ? form.pack(stem, m) : Packed{};
  });
  EXPECT_GT(remade.count(), 25);
  const Isa isa = tested_isas().back();
  Runner want(remade.plain(), with(isa, Compute::kF32));
  for (const bool mapped : {false, true}) {
    Runner::Options options = with(isa, Compute::kF32);
    options.placement = mapped ? WeightPlacement::kMapped : WeightPlacement::kResident;
    Runner got(remade.packed(), options);
    for (const auto& ids : remade.prompts()) {
      want.cache().clear_prefixes();
      got.cache().clear_prefixes();
      EXPECT_LE(max_difference(want.logits(ids, 0), got.logits(ids, 0)), 2e-3);
    }
  }
  Runner rounded(remade.packed(), with(isa, Compute::kBf16));
  expect_near(want, rounded, remade.prompts(), 2e-2);  // eight bits of input cost 1e-2 here
}

INSTANTIATE_TEST_SUITE_P(AllForms, QuantisedForm,
                         testing::Combine(testing::ValuesIn(kForms),
                                          testing::Values("glm4_moe_lite", "glm4_moe_int4_g128")),
                         [](const auto& param) {
                           return fmt::format("{}_{}", std::get<0>(param.param).name,
                                              std::get<1>(param.param));
                         });

// ---- single matrices

class QuantisedBinder : public testing::Test {
 protected:
  Matrix random_matrix(std::int64_t rows, std::int64_t cols) {
    std::normal_distribution<float> normal(0, 0.1f);
    Matrix m{rows, cols, {}};
    for (std::int64_t i = 0; i < rows * cols; ++i) m.values.push_back(normal(engine_));
    return m;
  }

  const Checkpoint& open(const Packed& packed, const std::string& config = "{}") {
    folder_.write("config.json", config);
    packers::write_safetensors(folder_, "model.safetensors", packed.tensors);
    checkpoint_ = *Checkpoint::open(folder_.path());
    return *checkpoint_;
  }

  // The matrix of a checkpoint as it is loaded, whose values are checked.
  Weight load(const Matrix& m, const Packed& packed, const LoadOptions& options,
              MatrixUse use = MatrixUse::kFeedForward) {
    TensorBinder binder(*checkpoint_, options);
    Weight weight =
        binder.matrix("m.weight", static_cast<int>(m.rows), static_cast<int>(m.cols), use);
    const Status status = binder.finish();
    EXPECT_TRUE(status.has_value()) << status.error().message;
    binder.load();
    // bf16 keeps eight bits of what is expanded.
    const float tolerance = weight.format() == QuantFormat::kBf16 ? 0x1p-8f : 1e-6f;
    std::vector<float> row(weight.cols());
    for (std::size_t r = 0; r < weight.rows(); ++r) {
      decode_row(weight, r, row);
      for (std::size_t c = 0; c < row.size(); ++c) {
        const float want = packed.values[r * row.size() + c];
        EXPECT_NEAR(row[c], want, tolerance * std::abs(want)) << r << " " << c;
      }
    }
    return weight;
  }

  bool lies_in_the_file(const Weight& weight) const {
    const auto bytes = checkpoint_->tensors().begin()->second.file->bytes();
    return weight.data() >= bytes.data() && weight.data() < bytes.data() + bytes.size();
  }

  static LoadOptions mapped() { return {.placement = WeightPlacement::kMapped}; }

 private:
  TempFolder folder_;
  std::mt19937 engine_{5};
  std::shared_ptr<const Checkpoint> checkpoint_;
};

// 576 rows are four blocks and a half, 200 columns one and a bit: the last ones have their own
// scales.
TEST_F(QuantisedBinder, partial_blocks_of_fp8_use_their_own_scales) {
  Matrix m = random_matrix(576, 200);
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c < m.cols; ++c)
      m.values[static_cast<std::size_t>(r * m.cols + c)] *=
          (r >= 512 ? 30.0f : 1.0f) * (c >= 128 ? 7.0f : 1.0f);
  }
  const Packed packed = packers::pack_fp8("m", m, {});
  open(packed);
  for (const LoadOptions& options : {LoadOptions{}, mapped()}) {
    const Weight weight = load(m, packed, options);
    EXPECT_EQ(weight.format(), QuantFormat::kF8);
    EXPECT_EQ(lies_in_the_file(weight), options.placement == WeightPlacement::kMapped);
    // A slice that cuts a block.
    const Weight tail = weight.slice_rows(500, 576);
    std::vector<float> got(200), want(200);
    for (std::size_t r = 0; r < tail.rows(); ++r) {
      decode_row(tail, r, got);
      decode_row(weight, 500 + r, want);
      EXPECT_EQ(got, want);
    }
  }
}

TEST_F(QuantisedBinder, codes_are_put_together_with_their_scales) {
  const Matrix m = random_matrix(37, 128);
  const std::pair<Packed, DType> cases[] = {
      {packers::pack_compressed("m", m, {4, 32, true, "BF16"}), DType::kInt4B},
      {packers::pack_compressed("m", m, {4, 64, true, "F16"}), DType::kQ4_0},
      {packers::pack_compressed("m", m, {4, 128, false, "F32"}), DType::kUint4F},
      {packers::pack_compressed("m", m, {8, 0, true, "F32"}), DType::kInt8F},
      {packers::pack_bytes("m", m, {8, 0, true, "F16"}), DType::kQ8_0},
      {packers::pack_fp4("m", m, Fp4::kCompressed), DType::kNVFP4},
      {packers::pack_fp4("m", m, Fp4::kMx), DType::kMXFP4},
  };
  for (const auto& [packed, type] : cases) {
    open(packed);
    for (const LoadOptions& options : {LoadOptions{}, mapped()}) {
      EXPECT_EQ(load(m, packed, options).format(), QuantFormat::kPanels);
      EXPECT_EQ(load(m, packed, options).type(), type);
      EXPECT_EQ(load(m, packed, options, MatrixUse::kKept).format(), QuantFormat::kBlocks);
    }
    EXPECT_EQ(load(m, packed, {.repack = false}).format(), QuantFormat::kBlocks);
    // Few bits stay as they are.
    EXPECT_EQ(load(m, packed, {.quant = WeightQuant::kQ4}).type(), type);
  }
}

TEST_F(QuantisedBinder, widths_that_no_block_divides_become_floats) {
  const Matrix m = random_matrix(18, 112);
  for (const Packed& packed : {packers::pack_fp4("m", m, Fp4::kModelOpt),
                               packers::pack_compressed("m", m, {4, 0, true, "BF16"}),
                               packers::pack_compressed("m", m, {8, 16, false, "F16"})}) {
    open(packed);
    EXPECT_EQ(load(m, packed, {}).format(), QuantFormat::kBf16);
    EXPECT_EQ(load(m, packed, {.compute = Compute::kF32}).format(), QuantFormat::kF32);
  }
}

TEST_F(QuantisedBinder, a_shape_that_the_config_contradicts_is_told_as_the_matrix_has_it) {
  const Matrix m = random_matrix(16, 64);
  for (const Packed& packed :
       {packers::pack_fp8("m", m, {}), packers::pack_fp4("m", m, Fp4::kModelOpt),
        packers::pack_compressed("m", m, {})}) {
    TensorBinder binder(open(packed));
    binder.matrix("m.weight", 16, 96, MatrixUse::kAttention);
    const Status status = binder.finish();
    ASSERT_FALSE(status.has_value());
    EXPECT_THAT(status.error().message, AllOf(HasSubstr("[16, 64]"), HasSubstr("[16, 96]")));
  }
}

// ---- what a config does not say, and what is left over

Packed mixed(const std::string& stem, const Matrix& m) {
  if (stem.find("experts") != std::string::npos && m.cols % 16 == 0)
    return packers::pack_fp4(stem, m, Fp4::kModelOpt);
  if (stem.find("self_attn") != std::string::npos)
    return packers::pack_fp8(stem, m, {0, 0, "weight_scale", "F32", 0});
  return {};
}

std::string log_of_load(const std::filesystem::path& folder, LogLevel level) {
  configure_log(level, LogFormat::kText);
  testing::internal::CaptureStderr();
  Runner runner(folder, with(tested_isas().back(), Compute::kBf16));
  configure_log(LogLevel::kInfo, LogFormat::kText);
  return testing::internal::GetCapturedStderr();
}

TEST(QuantisedMix, tensors_decide_where_the_config_is_wrong) {
  const Remade remade("glm4_moe_lite", R"({"quant_method":"modelopt","quant_algo":"FP8"})", mixed);
  const Isa isa = tested_isas().back();
  Runner want(remade.plain(), with(isa, Compute::kF32));
  Runner got(remade.packed(), with(isa, Compute::kF32));
  for (const auto& ids : remade.prompts())
    EXPECT_LE(max_difference(want.logits(ids, 0), got.logits(ids, 0)), 2e-3);
  const std::string log = log_of_load(remade.packed(), LogLevel::kInfo);
  EXPECT_THAT(log, AllOf(HasSubstr("modelopt"), HasSubstr("declares FP8"), HasSubstr("NVFP4")));
  const ModelInfo info = *describe_model(**Checkpoint::open(remade.packed()));
  EXPECT_THAT(info.notes, testing::Contains(HasSubstr("declares FP8")));
}

TEST(QuantisedMix, weights_are_described_by_what_they_stand_for) {
  const Remade remade("glm4_moe_lite", R"({"quant_method":"modelopt","quant_algo":"FP8"})", mixed);
  const auto packed = *Checkpoint::open(remade.packed()), plain = *Checkpoint::open(remade.plain());
  const ModelInfo info = *describe_model(*packed), want = *describe_model(*plain);
  std::uint64_t parameters = 0, wanted = 0, nbytes = 0;
  std::map<std::string, int> storage;
  for (const WeightGroup& group : info.weights) {
    parameters += group.parameters();
    nbytes += group.nbytes * group.count;
    if (group.part == WeightPart::kExperts) ++storage[group.storage];
  }
  for (const WeightGroup& group : want.weights) wanted += group.parameters();
  EXPECT_EQ(parameters, wanted);
  EXPECT_EQ(info.mtp_parameters, want.mtp_parameters);
  EXPECT_EQ(info.total_parameters, want.total_parameters);
  EXPECT_EQ(nbytes, info.weight_bytes);
  EXPECT_LT(info.weight_bytes, want.weight_bytes / 2);
  EXPECT_EQ(storage.size(), 1u);
  EXPECT_EQ(storage.begin()->first, "NVFP4 (e2m1, groups of 16, e4m3 scales, global scale)");
  EXPECT_THAT(info.weight_format, AllOf(HasSubstr("fp8"), HasSubstr("nvfp4")));
}

// What loading takes is what the plan says, but for the rounding up of each matrix.
TEST(QuantisedMix, plans_count_what_loading_takes) {
  for (const char* name : kCases) {
    const Case golden(name);
    const ModelInfo info = *describe_model(**Checkpoint::open(golden.folder()));
    std::uint64_t count = 0;
    for (const WeightGroup& group : info.weights) count += group.count;
    EXPECT_GT(resident_bytes(place_weights(info, {})), info.weight_bytes / 2) << name;
    EXPECT_LT(resident_bytes(place_weights(info, {})), 4 * info.weight_bytes + 64 * count) << name;
  }
}

// Scales of quantised caches and activations mean nothing here.
TEST(QuantisedMix, scales_that_nobody_needs_are_listed_once) {
  const Case golden("glm4_moe_nvfp4");
  const std::string log = log_of_load(golden.folder(), LogLevel::kDebug);
  EXPECT_THAT(log, AllOf(HasSubstr("model.layers.0.self_attn.k_proj.k_scale"),
                         HasSubstr("model.layers.3.self_attn.v_proj.v_scale"),
                         HasSubstr("gate_proj.input_scale")));
  EXPECT_EQ(log.find("k_proj.k_scale"), log.find("model.layers.0.self_attn.k_proj.k_scale") + 25);
  EXPECT_EQ(log_of_load(golden.folder(), LogLevel::kInfo).find("k_scale"), std::string::npos);
}

class LeftOver : public testing::Test {
 protected:
  // The refusal of a tiny model to which a tensor was added, "" when it loads.
  std::string with_tensor(const Tensor& added, const char* config = nullptr) {
    const Remade remade(
        "glm4_moe_lite", config == nullptr ? R"({"quant_method":"gptq","bits":4})" : config,
        [&](const std::string& stem, const Matrix& m) {
          Packed made;
          if (stem == "model.layers.0.mlp.gate_proj")
            made = packers::pack_gptq(stem, m, {4, 32, true, "F16"}, 1);
          if (stem == added_beside_) {
            made = {
                {{stem + ".weight", "F32", {m.rows, m.cols}, packers::float_bytes(m.values, "F32")},
                 added},
                m.values};
          }
          return made;
        });
    const Status checked = check_model(**Checkpoint::open(remade.packed()));
    return checked ? "" : checked.error().message;
  }
  std::string added_beside_ = "model.layers.0.mlp.up_proj";
};

TEST_F(LeftOver, scales_of_activations_and_caches_are_accepted) {
  const std::string one = packers::float_bytes({1}, "F32");
  for (const char* name :
       {"model.layers.0.self_attn.k_proj.k_scale", "model.layers.1.self_attn.v_scale",
        "model.layers.0.self_attn.k_zero_point", "model.layers.0.mlp.up_proj.input_scale",
        "model.layers.0.mlp.up_proj.input_global_scale"}) {
    EXPECT_EQ(with_tensor({name, "F32", {}, one}), "") << name;
  }
}

TEST_F(LeftOver, anything_else_is_refused_by_name) {
  const std::string one = packers::float_bytes({1}, "F32");
  EXPECT_THAT(with_tensor({"model.layers.0.mlp.up_proj.weight_scale", "F32", {}, one}),
              HasSubstr("model.layers.0.mlp.up_proj.weight_scale in model.safetensors is no part"));
  for (const char* name : {"model.layers.0.mlp.up_proj.pre_quant_scale", "model.layers.0.mlp.new",
                           "model.layers.99.mlp.up_proj.weight_scale"}) {
    EXPECT_THAT(with_tensor({name, "F32", {}, one}), HasSubstr(name));
  }
}

TEST_F(LeftOver, biases_of_gptq_are_accepted_when_they_are_zero) {
  const Tensor zero{"model.layers.0.mlp.gate_proj.bias", "F16", {160}, std::string(320, '\0')};
  EXPECT_EQ(with_tensor(zero), "");
  Tensor other = zero;
  other.bytes[5] = 1;
  EXPECT_THAT(with_tensor(other), HasSubstr("gate_proj.bias"));
  other = zero;
  other.name = "model.layers.0.mlp.up_proj.bias";
  EXPECT_THAT(with_tensor(other), HasSubstr("up_proj.bias"));
}

TEST_F(LeftOver, a_scale_that_is_missing_is_named_with_its_matrix) {
  const Remade remade("glm4_moe_lite", R"({"quant_method":"fp8"})",
                      [](const std::string& stem, const Matrix& m) {
                        Packed made = packers::pack_fp8(stem, m, {});
                        if (stem == "model.layers.1.mlp.experts.3.up_proj") made.tensors.pop_back();
                        return made;
                      });
  const Status checked = check_model(**Checkpoint::open(remade.packed()));
  ASSERT_FALSE(checked.has_value());
  EXPECT_THAT(checked.error().message,
              AllOf(HasSubstr("model.layers.1.mlp.experts.3.up_proj.weight_scale_inv"),
                    HasSubstr("model.layers.1.mlp.experts.3.up_proj.weight")));
}

// --weights makes fewer bits of FP8, and leaves alone what has few already.
TEST(QuantisedMix, weights_option_applies_to_fp8) {
  const Case golden("glm4_moe_lite_fp8");
  Runner::Options options = with(tested_isas().back(), Compute::kBf16);
  Runner stored(golden.folder(), options);
  options.quant = WeightQuant::kQ8;
  Runner q8(golden.folder(), options);
  expect_near(stored, q8, {golden.prompt(0)}, 1e-2);
}

}  // namespace
}  // namespace glint::golden
