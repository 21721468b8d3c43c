// The draft layer against transformers' numbers (mtp.* of tests/data/golden), against itself
// however the work is cut, and what becomes of checkpoints without one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "../base/temp_folder.h"
#include "drafter.h"
#include "golden.h"

namespace glint::golden {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const char* const kCases[] = {"glm4_moe",
                              "glm4_moe_noqknorm",
                              "glm4_moe_mtp_sidecar",
                              "glm4_moe_lite",
                              "glm4_moe_lite_groups",
                              "glm4_moe_fp8_channel",
                              "glm4_moe_nvfp4",
                              "glm4_moe_lite_fp8",
                              "glm4_moe_lite_int4_g32",
                              "glm4_moe_lite_nvfp4",
                              "glm5_next"};

Runner::Options options_of(Isa isa, Compute compute, LatentForm form,
                           DraftLayer draft = DraftLayer::kRequired) {
  Runner::Options options;
  options.isa = isa;
  options.compute = compute;
  options.form = form;
  options.draft = draft;
  return options;
}

class Draft : public testing::TestWithParam<std::tuple<const char*, Isa>> {
 protected:
  Case golden_{std::get<0>(GetParam())};
  Isa isa_ = std::get<1>(GetParam());
  const Expected& expected(const std::string& name) const {
    return golden_.expected("mtp." + name);
  }
  // The bisect prompt and the token after it: slots 1 to its length are the reference's positions.
  Tokens tokens() const {
    Tokens tokens = golden_.prompt(golden_.bisect_prompt());
    tokens.push_back(static_cast<std::int32_t>(expected("next_ids").values.back()));
    return tokens;
  }
};

TEST_P(Draft, f32_logits_and_states_match_the_reference_at_every_chunk_size) {
  const double tolerance = golden_.tolerance(golden_.bisect_prompt());
  for (const LatentForm form : {LatentForm::kAbsorbed, LatentForm::kExpanded}) {
    for (const int chunk : {0, 1, 7}) {
      Drafter drafter(golden_.folder(), options_of(isa_, Compute::kF32, form));
      const Drafts got = drafter.run(tokens(), chunk);
      EXPECT_LE(max_difference(expected("logits").values, got.logits), tolerance)
          << "chunk " << chunk;
      EXPECT_LE(max_difference(expected("hidden_out").values, got.recycled), tolerance)
          << "chunk " << chunk;
    }
  }
}

TEST_P(Draft, a_chain_of_drafts_matches_the_reference) {
  Drafter drafter(golden_.folder(), options_of(isa_, Compute::kF32, LatentForm::kByCost));
  const auto& want = expected("chain_ids").values;
  const auto [ids, logits] = drafter.chain(tokens(), static_cast<int>(want.size()));
  EXPECT_EQ(ids, want);
  EXPECT_LE(max_difference(expected("chain_logits").values, logits),
            golden_.tolerance(golden_.bisect_prompt()));
}

TEST_P(Draft, results_have_the_same_bits_however_the_work_is_cut) {
  for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
    Runner::Options options = options_of(isa_, compute, LatentForm::kAbsorbed);
    std::vector<Tokens> prompts;
    std::vector<Drafts> want;
    Drafter whole(golden_.folder(), options);
    for (int p = 0; p < golden_.num_prompts(); ++p) {
      prompts.push_back(golden_.prompt(p));
      whole.cache().clear_prefixes();
      want.push_back(whole.run(prompts.back(), 0));
    }
    for (const auto& [threads, chunk] : {std::pair{1, 1}, {3, 0}, {2, 7}}) {
      options.threads = threads;
      Drafter drafter(golden_.folder(), options);
      EXPECT_EQ(drafter.run(prompts, chunk), want) << "threads " << threads << " chunk " << chunk;
      // Again: a prompt longer than a page starts from the prefix tree, with the state kept there.
      for (std::size_t p = 0; p < prompts.size(); ++p) {
        const Drafts again = drafter.run(prompts[p], chunk);
        EXPECT_TRUE(std::equal(again.logits.rbegin(), again.logits.rend(), want[p].logits.rbegin()))
            << "prefix hit, prompt " << p;
        if (prompts[p].size() > kPageSize) {
          EXPECT_EQ(again.first_slot % kPageSize, 0);
          EXPECT_LT(again.logits.size(), want[p].logits.size());
        }
      }
      drafter.cache().check_integrity();
    }
  }
}

// Whatever lay in the pages before: a NaN there would spread.
TEST_P(Draft, the_slot_without_a_state_is_never_met) {
  for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
    for (const LatentForm form : {LatentForm::kAbsorbed, LatentForm::kExpanded}) {
      Drafter drafter(golden_.folder(), options_of(isa_, compute, form));
      const Drafts want = drafter.run(tokens(), 0);
      drafter.cache().clear_prefixes();
      for (PageId page = 0; page < 4; ++page)
        std::memset(drafter.cache().rows(page, 0), 0xff, drafter.cache().spec().bytes_per_page());
      EXPECT_EQ(drafter.run(tokens(), 0), want);
    }
  }
}

TEST_P(Draft, the_trunk_computes_what_it_computes_without) {
  const auto& ids = golden_.prompt(golden_.bisect_prompt());
  Runner without(golden_.folder(),
                 options_of(isa_, Compute::kBf16, LatentForm::kByCost, DraftLayer::kOff));
  Runner with(golden_.folder(), options_of(isa_, Compute::kBf16, LatentForm::kByCost));
  EXPECT_EQ(with.logits(ids, 0), without.logits(ids, 0));
  EXPECT_FALSE(without.model().can_draft());
  EXPECT_TRUE(with.model().can_draft());
  EXPECT_EQ(without.model().cache_spec().page_state_bytes, 0u);
  EXPECT_EQ(with.model().cache_spec().num_layers, without.model().cache_spec().num_layers + 1);
  EXPECT_EQ(with.model().cache_spec().num_layers, with.model().info().draft.cache.bf16.num_layers);
}

std::string param_name(const testing::TestParamInfo<std::tuple<const char*, Isa>>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param), isa_name(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(AllCasesAndTables, Draft,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::ValuesIn(tested_isas())),
                         param_name);

TEST(DraftGguf, the_layer_of_a_file_matches_the_reference) {
  const Case golden("glm4_moe");
  Tokens tokens = golden.prompt(golden.bisect_prompt());
  tokens.push_back(static_cast<std::int32_t>(golden.expected("mtp.next_ids").values.back()));
  const auto file = fs::path(GLINT_TEST_DATA) / "gguf" / "glm4_moe.gguf";
  const Isa isa = tested_isas().back();
  Drafter drafter(file, options_of(isa, Compute::kF32, LatentForm::kByCost));
  EXPECT_LE(max_difference(golden.expected("mtp.logits").values, drafter.run(tokens, 0).logits),
            golden.tolerance(golden.bisect_prompt()));
}

// A case's checkpoint, to be damaged.
class DraftLoading : public testing::Test {
 protected:
  fs::path copy_of(const std::string& name) {
    const fs::path from = Case(name).folder(), to = folder_.path() / name;
    fs::copy(from, to);
    return to;
  }
  static std::string text_of(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  static void replace(const fs::path& file, const std::string& from, const std::string& to) {
    std::string text = text_of(file);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    std::ofstream(file, std::ios::binary) << text;
  }
  static std::shared_ptr<const Checkpoint> open(const fs::path& folder) {
    auto checkpoint = Checkpoint::open(folder);
    EXPECT_TRUE(checkpoint.has_value());
    return *checkpoint;
  }
  // The bytes of matrices that are loaded.
  static std::uint64_t loaded_bytes(const fs::path& folder, DraftLayer draft) {
    std::uint64_t bytes = 0;
    LoadOptions options;
    options.draft = draft;
    options.progress = [&](std::uint64_t, std::uint64_t total) { bytes = total; };
    EXPECT_TRUE(load_model(open(folder), options).has_value());
    return bytes;
  }
  static std::string refusal(const fs::path& folder, DraftLayer draft) {
    LoadOptions options;
    options.draft = draft;
    const auto model = load_model(open(folder), options);
    return model.has_value() ? "loaded" : model.error().message;
  }

  TempFolder folder_;
};

TEST_F(DraftLoading, tensors_of_a_layer_that_is_off_are_not_loaded) {
  const Case golden("glm4_moe_lite");
  const auto checkpoint = open(golden.folder());
  std::uint64_t trunk = 0, layer = 0;
  for (const auto& [name, tensor] : checkpoint->tensors()) {
    if (tensor.shape.size() < 2) continue;
    if (!name.starts_with("model.layers.4.")) trunk += tensor.bytes.size();
    if (name.starts_with("model.layers.4.") && name.find("embed_tokens") == std::string::npos &&
        name.find("shared_head.head") == std::string::npos) {
      layer += tensor.bytes.size();
    }
  }
  EXPECT_EQ(loaded_bytes(golden.folder(), DraftLayer::kOff), trunk);
  // Its embedding and head equal the model's and are shared.
  EXPECT_EQ(loaded_bytes(golden.folder(), DraftLayer::kIfPresent), trunk + layer);
  const ModelInfo info = *describe_model(*checkpoint);
  EXPECT_TRUE(info.mtp_present);
  EXPECT_GE(info.draft.weight_bytes, layer);
  EXPECT_EQ(info.draft.copy_bytes, 2u * 320 * 96 * 2);
  EXPECT_EQ(info.draft.cache.bf16.bytes_per_token() / 5 * 4, info.cache.bf16.bytes_per_token());
  EXPECT_EQ(info.draft.cache.bf16.page_state_bytes, 4u + 96 * 4);
}

TEST_F(DraftLoading, an_embedding_and_head_that_differ_are_loaded_and_used) {
  const fs::path changed = copy_of("glm4_moe_lite");
  const Case golden("glm4_moe_lite");
  const Runner::Options options =
      options_of(Isa::kScalar, Compute::kF32, LatentForm::kByCost, DraftLayer::kIfPresent);
  const Drafts before = Drafter(changed, options).run(golden.prompt(1), 0);
  for (const std::string name : {"embed_tokens.weight", "shared_head.head.weight"}) {
    const auto checkpoint = open(changed);
    const TensorRef& tensor = *checkpoint->find("model.layers.4." + name);
    const auto at = tensor.bytes.data() - tensor.file->bytes().data();
    std::string text = text_of(changed / "model.safetensors");
    for (std::size_t i = 1; i < tensor.bytes.size(); i += 2) {
      text[static_cast<std::size_t>(at) + i] ^= static_cast<char>(0x80);  // signs
    }
    std::ofstream(changed / "model.safetensors", std::ios::binary) << text;
    const Drafts after = Drafter(changed, options).run(golden.prompt(1), 0);
    EXPECT_GT(max_difference(before.logits, after.logits), 0.1) << name;
  }
  EXPECT_EQ(loaded_bytes(changed, DraftLayer::kIfPresent),
            loaded_bytes(golden.folder(), DraftLayer::kIfPresent) + 2 * 320 * 96 * 2);
}

TEST_F(DraftLoading, a_layer_that_is_declared_and_absent_is_off_unless_it_is_asked_for) {
  const fs::path folder = copy_of("glm4_moe_mtp_sidecar");
  fs::remove(folder / "mtp.safetensors");
  EXPECT_EQ(refusal(folder, DraftLayer::kOff), "loaded");
  LoadOptions options;
  options.draft = DraftLayer::kIfPresent;
  const auto model = load_model(open(folder), options);
  ASSERT_TRUE(model.has_value());
  EXPECT_FALSE((*model)->can_draft());
  EXPECT_FALSE((*model)->info().mtp_present);
  EXPECT_THAT((*model)->info().notes, testing::Contains(HasSubstr("MTP stays off")));
  EXPECT_THAT(refusal(folder, DraftLayer::kRequired),
              testing::AllOf(HasSubstr("declares"), HasSubstr("eh_proj.weight")));
}

TEST_F(DraftLoading, a_layer_that_nobody_declared_cannot_be_asked_for) {
  const fs::path folder = copy_of("glm4_moe_mtp_sidecar");
  fs::remove(folder / "mtp.safetensors");
  replace(folder / "config.json", "\"num_nextn_predict_layers\": 1",
          "\"num_nextn_predict_layers\": 0");
  EXPECT_EQ(refusal(folder, DraftLayer::kIfPresent), "loaded");
  EXPECT_THAT(refusal(folder, DraftLayer::kRequired), HasSubstr("num_nextn_predict_layers"));
}

TEST_F(DraftLoading, a_layer_in_pieces_is_refused_by_name_but_harmless_when_off) {
  const fs::path folder = copy_of("glm4_moe_lite");
  replace(folder / "model.safetensors", "model.layers.4.hnorm.weight",
          "model.layers.4.xnorm.weight");
  EXPECT_EQ(refusal(folder, DraftLayer::kOff), "loaded");
  EXPECT_THAT(refusal(folder, DraftLayer::kIfPresent),
              testing::AllOf(HasSubstr("tensor model.layers.4.hnorm.weight is missing"),
                             HasSubstr("model.layers.4.xnorm.weight")));
}

TEST_F(DraftLoading, of_several_layers_the_first_is_used) {
  const fs::path folder = copy_of("glm4_moe_lite");
  replace(folder / "config.json", "\"num_nextn_predict_layers\": 1",
          "\"num_nextn_predict_layers\": 2");
  LoadOptions options;
  options.draft = DraftLayer::kRequired;
  const auto model = load_model(open(folder), options);
  ASSERT_TRUE(model.has_value());
  EXPECT_TRUE((*model)->can_draft());
  EXPECT_THAT((*model)->info().notes, testing::Contains(HasSubstr("of 2 MTP layers")));
}

}  // namespace
}  // namespace glint::golden
