// Images in prompts: their rows in every cut of the prompt, prefixes that never mix them up, and a
// tower that runs no more than it must.
#include "engine/images.h"

#include <gmock/gmock.h>

#include "engine/engine.h"
#include "step_runner.h"

namespace glint {
namespace {

using ::testing::HasSubstr;

constexpr std::int32_t kPlaceholder = 42;

// Text, then images with text behind each.
struct Scene {
  Tokens prompt;
  Tokens seen;  // the same with what the images look like
  std::vector<PromptImage> images;

  explicit Scene(int text) : prompt(fake_text("scene", text)), seen(prompt) {}
  Scene& image(float value, int count) {
    images.push_back({.first = static_cast<int>(prompt.size()),
                      .count = count,
                      .content = static_cast<std::uint64_t>(value * 1000),
                      .patches = [value, count] {
                        return ImagePatches{.height = 2 * count, .width = 2, .values = {value}};
                      }});
    prompt.insert(prompt.end(), static_cast<std::size_t>(count), kPlaceholder);
    const Tokens sight = FakeModel::sight(value, count);
    seen.insert(seen.end(), sight.begin(), sight.end());
    return *this;
  }
  Scene& text(const char* name, int count) {
    for (const std::int32_t token : fake_text(name, count)) {
      prompt.push_back(token);
      seen.push_back(token);
    }
    return *this;
  }
  GenerateRequest request(int max_tokens) const {
    GenerateRequest request = greedy_request(prompt, max_tokens);
    request.images = images;
    return request;
  }
  Tokens answer(int max_tokens) const { return FakeModel::greedy(seen, max_tokens); }
};

FakeRig seeing_rig(std::size_t pages, bool drafts = false) {
  return FakeRig(pages, true, 1, drafts);
}

TEST(Images, every_chunk_gets_its_rows) {
  const Scene scene = Scene(5).image(0.25f, 90).text("between", 3).image(0.5f, 7).text("end", 20);
  for (const int chunk : {4, 7, 64, 512}) {
    for (const bool drafts : {false, true}) {
      FakeRig rig = seeing_rig(16, drafts);
      rig.model.sees = true;
      EngineOptions options = small_options(1, chunk);
      if (drafts) options.draft_mode = DraftMode::kFixed;
      options.num_drafts = drafts ? 2 : 0;
      Runner runner(rig, options);
      const Outcome& outcome = runner.add(scene.request(9));
      runner.run();
      EXPECT_EQ(outcome.tokens, scene.answer(9)) << chunk << " " << drafts;
      EXPECT_EQ(rig.model.num_encoded, 2);
    }
  }
}

// What the cache holds of one image is never taken for another, nor for the placeholder's text.
TEST(Images, prefixes_are_of_the_same_image_or_of_none) {
  FakeRig rig = seeing_rig(32);
  rig.model.sees = true;
  Runner runner(rig, small_options());
  const auto scene = [](float value) { return Scene(70).image(value, 130).text("end", 60); };
  Scene words(70);
  words.prompt.insert(words.prompt.end(), 130, kPlaceholder);
  words.seen = words.prompt;
  words.text("end", 60);
  const auto run = [&](const Scene& s, int cached, int encoded) {
    const int before = rig.model.num_encoded;
    const Outcome& outcome = runner.add(s.request(5));
    runner.run();
    EXPECT_EQ(outcome.tokens, s.answer(5));
    EXPECT_EQ(outcome.last.usage.cached_tokens, cached);
    EXPECT_EQ(rig.model.num_encoded - before, encoded);
  };
  run(scene(0.25f), 0, 1);
  run(scene(0.75f), 64, 1);
  run(scene(0.25f), 256, 0);  // the tower need not run
  run(words, 64, 0);
  run(scene(0.75f), 256, 0);
  run(words, 256, 0);
}

TEST(Images, a_prefix_that_ends_inside_an_image_goes_on_there) {
  FakeRig rig = seeing_rig(32);
  rig.model.sees = true;
  Runner runner(rig, small_options());
  const Scene first = Scene(10).image(0.25f, 100).text("a", 4);
  const Scene second = Scene(10).image(0.25f, 100).text("b", 90);
  for (const Scene& scene : {first, second}) {
    const Outcome& outcome = runner.add(scene.request(4));
    runner.run();
    EXPECT_EQ(outcome.tokens, scene.answer(4));
  }
  EXPECT_EQ(rig.model.num_encoded, 2);
}

TEST(Images, siblings_wait_for_the_same_image_only) {
  FakeRig rig = seeing_rig(64);
  rig.model.sees = true;
  Runner runner(rig, small_options(4, 32));
  const Scene a = Scene(3).image(0.25f, 140).text("end", 9);
  const Scene b = Scene(3).image(0.5f, 140).text("end", 9);
  std::vector<std::pair<const Scene*, const Outcome*>> running;
  for (const Scene* scene : {&a, &b, &a, &b})
    running.push_back({scene, &runner.add(scene->request(6))});
  runner.run();
  for (const auto& [scene, outcome] : running) EXPECT_EQ(outcome->tokens, scene->answer(6));
  // The tails of the second ones are inside the images still.
  EXPECT_LE(rig.model.num_encoded, 4);
  EXPECT_EQ(running[2].second->last.usage.cached_tokens, 128);
}

TEST(Images, preempted_sequences_see_again) {
  FakeRig rig = seeing_rig(9);
  rig.model.sees = true;
  Runner runner(rig, small_options(3, 32, 512));
  const Scene a = Scene(3).image(0.25f, 100).text("x", 9);
  const Scene b = Scene(3).image(0.5f, 120).text("y", 9);
  const Scene c = Scene(3).image(0.75f, 110).text("z", 9);
  std::vector<std::pair<const Scene*, const Outcome*>> running;
  for (const Scene* scene : {&a, &b, &c})
    running.push_back({scene, &runner.add(scene->request(90))});
  runner.run();
  EXPECT_GT(runner.loop().stats().preemptions, 0u);
  for (const auto& [scene, outcome] : running) EXPECT_EQ(outcome->tokens, scene->answer(90));
}

TEST(Images, places_must_be_in_the_prompt_and_apart) {
  const auto refusal = [](std::vector<PromptImage> images) {
    const Status status = check_images(images, 100);
    return status ? std::string() : status.error().message;
  };
  const auto at = [](int first, int count) {
    return PromptImage{.first = first, .count = count, .content = 0, .patches = {}};
  };
  EXPECT_EQ(refusal({at(0, 50), at(50, 50)}), "");
  EXPECT_THAT(refusal({at(0, 51), at(50, 50)}), HasSubstr("50 tokens at 50"));
  EXPECT_THAT(refusal({at(-1, 5)}), HasSubstr("at -1"));
  EXPECT_THAT(refusal({at(5, 0)}), HasSubstr("0 tokens"));
  EXPECT_THAT(refusal({at(99, 2)}), HasSubstr("prompt of 100"));
  EXPECT_THAT(refusal({at(2147483647, 2147483647)}), HasSubstr("prompt of 100"));
}

TEST(Images, blind_models_refuse_them) {
  FakeRig rig = seeing_rig(16);
  Engine engine(rig.model, rig.exec, rig.cache, small_options());
  const auto ticket = engine.submit(Scene(3).image(0.5f, 4).request(1), [](TokenEvent) {});
  ASSERT_FALSE(ticket.has_value());
  EXPECT_EQ(ticket.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace glint
