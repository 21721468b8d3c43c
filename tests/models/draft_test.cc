// The draft layer against transformers' numbers (mtp.* of tests/data/golden), against itself
// however the work is cut, and what becomes of checkpoints without one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "../base/temp_folder.h"
#include "golden.h"

namespace glint::golden {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const char* const kCases[] = {"glm4_moe", "glm4_moe_noqknorm", "glm4_moe_mtp_sidecar",
                              "glm4_moe_lite", "glm4_moe_lite_groups"};

using Tokens = std::vector<std::int32_t>;

// What the draft layer makes of some slots: [slots, vocab] and [slots, hidden].
struct Drafts {
  int first_slot = 0;
  std::vector<float> logits, recycled;
  bool operator==(const Drafts&) const = default;
};

// Runs sequences through the network and its draft layer, step by step as an engine does.
class Drafter {
 public:
  Drafter(const fs::path& path, const Runner::Options& options) : runner_(path, options) {}

  // Sequences that share every step, `chunk` tokens each (0: all); the slots of all tokens that no
  // cached page holds. Keeps in every page the state at its end.
  std::vector<Drafts> run(const std::vector<Tokens>& prompts, int chunk) {
    std::vector<Sequence> sequences;
    for (const Tokens& tokens : prompts) sequences.push_back(start(tokens));
    while (step(sequences, chunk)) {
    }
    std::vector<Drafts> out;
    for (Sequence& sequence : sequences) out.push_back(std::move(sequence.drafts));
    return out;
  }
  Drafts run(const Tokens& tokens, int chunk) { return run(std::vector<Tokens>{tokens}, chunk)[0]; }

  // `n` greedy drafts behind the prompt, each of the one before it, and their logits.
  std::pair<std::vector<float>, std::vector<float>> chain(const Tokens& prompt, int n) {
    std::vector<Sequence> sequences;
    sequences.push_back(start(prompt));
    Sequence& sequence = sequences[0];
    while (step(sequences, 0)) {
    }
    const std::size_t d = hidden(), v = vocab();
    std::vector<float> state(sequence.drafts.recycled.end() - static_cast<std::ptrdiff_t>(d),
                             sequence.drafts.recycled.end());
    std::vector<float> logits(sequence.drafts.logits.end() - static_cast<std::ptrdiff_t>(v),
                              sequence.drafts.logits.end());
    std::vector<float> ids, all_logits;
    EXPECT_TRUE(sequence.cache.reserve(n).has_value());
    for (int i = 0; i < n; ++i) {
      const auto token = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                                   logits.begin());
      ids.push_back(static_cast<float>(token));
      all_logits.insert(all_logits.end(), logits.begin(), logits.end());
      const SequenceSpan span{0, 1, static_cast<int>(prompt.size()) + i, sequence.cache.pages()};
      const std::int32_t row = 0;
      std::vector<float> next(d);
      runner_.model().draft(runner_.exec(), runner_.cache(),
                            {{&token, 1}, {&span, 1}, state, {&row, 1}, next}, logits);
      state = next;
    }
    return {ids, all_logits};
  }

  Cache& cache() { return runner_.cache(); }
  const Model& model() { return runner_.model(); }

 private:
  struct Sequence {
    const Tokens* tokens;
    SequenceCache cache;
    std::vector<float> last;  // the state at the last computed position, or empty
    Drafts drafts;
  };

  std::size_t vocab() const { return static_cast<std::size_t>(runner_.vocab()); }
  std::size_t hidden() { return static_cast<std::size_t>(model().info().hidden_size); }

  Sequence start(const Tokens& tokens) {
    Sequence sequence{&tokens, cache().start(tokens), {}, {}};
    sequence.drafts.first_slot = std::max(1, sequence.cache.length());
    if (sequence.cache.length() > 0) {
      sequence.last.resize(hidden());
      std::memcpy(sequence.last.data(),
                  cache().page_state(sequence.cache.pages().back()) + sizeof(std::uint32_t),
                  hidden() * sizeof(float));
    }
    return sequence;
  }

  bool step(std::vector<Sequence>& sequences, int chunk) {
    const std::size_t d = hidden();
    Tokens tokens;
    std::vector<SequenceSpan> spans;
    for (Sequence& s : sequences) {
      const int left = static_cast<int>(s.tokens->size()) - s.cache.length();
      const int n = chunk == 0 ? left : std::min(left, chunk);
      EXPECT_TRUE(s.cache.reserve(n).has_value());
      spans.push_back({static_cast<int>(tokens.size()), n, s.cache.length(), s.cache.pages()});
      const auto from = s.tokens->begin() + s.cache.length();
      tokens.insert(tokens.end(), from, from + n);
    }
    if (tokens.empty()) return false;
    std::vector<float> states(tokens.size() * d);
    runner_.model().forward(runner_.exec(), cache(), {tokens, spans, {}, states}, {});
    draft(sequences, spans, tokens, states);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      Sequence& s = sequences[i];
      const SequenceSpan& span = spans[i];
      if (span.count == 0) continue;
      const auto state = [&](int position) {
        return states.data() + static_cast<std::size_t>(span.begin + position - span.start) * d;
      };
      for (int p = span.start; p < span.start + span.count; ++p) {
        if (p % kPageSize != kPageSize - 1) continue;
        std::byte* page = cache().page_state(span.pages[static_cast<std::size_t>(p / kPageSize)]);
        std::memcpy(page + sizeof(std::uint32_t), state(p), d * sizeof(float));
      }
      const float* last = state(span.start + span.count - 1);
      s.last.assign(last, last + d);
      s.cache.commit(std::span(tokens).subspan(static_cast<std::size_t>(span.begin),
                                               static_cast<std::size_t>(span.count)));
    }
    return true;
  }

  // The slots of the tokens of a step; slot 0 of a sequence has nothing before it.
  void draft(std::vector<Sequence>& sequences, const std::vector<SequenceSpan>& spans,
             const Tokens& tokens, const std::vector<float>& states) {
    const std::size_t d = hidden(), v = vocab();
    Tokens slots, rows;
    std::vector<float> before;
    std::vector<SequenceSpan> slot_spans;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const SequenceSpan& span = spans[i];
      const int first = std::max(1, span.start);
      const int count = std::max(0, span.start + span.count - first);
      slot_spans.push_back({static_cast<int>(slots.size()), count, first, span.pages});
      for (int p = first; p < first + count; ++p) {
        rows.push_back(static_cast<std::int32_t>(slots.size()));
        slots.push_back(tokens[static_cast<std::size_t>(span.begin + p - span.start)]);
        const float* state =
            p == span.start
                ? sequences[i].last.data()
                : states.data() + static_cast<std::size_t>(span.begin + p - 1 - span.start) * d;
        before.insert(before.end(), state, state + d);
      }
    }
    if (slots.empty()) return;
    std::vector<float> logits(slots.size() * v), recycled(slots.size() * d);
    runner_.model().draft(runner_.exec(), cache(), {slots, slot_spans, before, rows, recycled},
                          logits);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const auto append = [&](std::vector<float>& to, const std::vector<float>& from,
                              std::size_t width) {
        const auto at = from.begin() + static_cast<std::ptrdiff_t>(
                                           static_cast<std::size_t>(slot_spans[i].begin) * width);
        to.insert(to.end(), at,
                  at + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(slot_spans[i].count) *
                                                   width));
      };
      append(sequences[i].drafts.logits, logits, v);
      append(sequences[i].drafts.recycled, recycled, d);
    }
  }

  Runner runner_;
};

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
  EXPECT_EQ(with.model().cache_spec().num_layers, with.model().info().draft.cache.num_layers);
}

std::string param_name(const testing::TestParamInfo<std::tuple<const char*, Isa>>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param), isa_name(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(AllCasesAndTables, Draft,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::ValuesIn(tested_isas())),
                         param_name);

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
  EXPECT_EQ(info.draft.cache.bytes_per_token() / 5 * 4, info.cache.bytes_per_token());
  EXPECT_EQ(info.draft.cache.page_state_bytes, 4u + 96 * 4);
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
