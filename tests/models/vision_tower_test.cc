// The tower of the golden checkpoint against transformers, and against itself.
#include "models/layers/vision_tower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "golden.h"

namespace glint {
namespace {

using ::testing::HasSubstr;

// The released tower normalises its blocks with another eps than the config says; the reference
// follows the config.
constexpr float kReferenceEps = 1e-5f;

struct Tower {
  golden::Case golden{"glm5_next"};
  std::shared_ptr<const Checkpoint> checkpoint;
  VisionDims dims;
  VisionWeights weights;
  ThreadPool pool;
  Workspace workspace;
  Exec exec;
  Compute compute;

  Tower(Isa isa, Compute c, int threads)
      : checkpoint(*Checkpoint::open(golden.folder())),
        dims(*read_vision(*checkpoint->config().find("vision_config"), 64)),
        pool(threads),
        exec{kernel_table(isa), pool, workspace},
        compute(c) {
    LoadOptions options;
    options.compute = compute;
    options.kernels = &exec.kernels;
    options.quant = WeightQuant::kQ8;  // which the tower has no part in
    TensorBinder binder(*checkpoint, options);
    weights = bind_vision(binder, dims);
    binder.skip([](std::string_view name) { return !name.starts_with(kVisionPrefix); });
    const Status bound = binder.finish();
    EXPECT_TRUE(bound.has_value()) << bound.error().message;
    binder.load();
    dims.block_eps = kReferenceEps;
  }

  std::vector<float> encode(const ImagePatches& image) {
    std::vector<float> features(static_cast<std::size_t>(image.tokens() * dims.out_hidden_size));
    encode_image(exec, compute, dims, weights, image, features);
    return features;
  }
};

// The images of the golden case, one after the other.
std::vector<ImagePatches> golden_images(const Tower& tower) {
  const auto& grid = tower.golden.expected("vision.grid_thw");
  auto from = tower.golden.expected("vision.pixel_values").values.begin();
  std::vector<ImagePatches> images;
  for (std::size_t i = 0; i < grid.values.size(); i += 3) {
    ImagePatches image{static_cast<int>(grid.values[i + 1]),
                       static_cast<int>(grid.values[i + 2]),
                       tower.dims.merge,
                       {}};
    const auto end = from + image.height * image.width * tower.dims.patch_values();
    image.values.assign(from, end);
    from = end;
    images.push_back(std::move(image));
  }
  return images;
}

ImagePatches random_image(const VisionDims& dims, int height, int width) {
  std::mt19937 engine(7);
  std::normal_distribution<float> value;
  ImagePatches image{height, width, dims.merge, {}};
  image.values.resize(static_cast<std::size_t>(height * width * dims.patch_values()));
  for (float& v : image.values) v = value(engine);
  return image;
}

TEST(VisionTower, features_are_those_of_transformers) {
  for (const Isa isa : golden::tested_isas()) {
    for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
      Tower tower(isa, compute, 2);
      std::vector<float> features;
      for (const ImagePatches& image : golden_images(tower)) {
        const auto one = tower.encode(image);
        features.insert(features.end(), one.begin(), one.end());
      }
      const auto& expected = tower.golden.expected("vision.features").values;
      ASSERT_EQ(features.size(), expected.size());
      double size = 0;
      for (const float v : expected) size = std::max(size, std::fabs(static_cast<double>(v)));
      EXPECT_LE(golden::max_difference(features, expected),
                size * (compute == Compute::kF32 ? 2e-5 : 3e-2))
          << isa_name(isa);
      EXPECT_GT(size, 0.5);
    }
  }
}

TEST(VisionTower, threads_change_no_bit_and_images_do_not_see_each_other) {
  Tower alone(golden::tested_isas().back(), Compute::kBf16, 1);
  Tower team(golden::tested_isas().back(), Compute::kBf16, 3);
  // Several tiles, and more keys than a span.
  const ImagePatches large = random_image(alone.dims, 30, 22);
  const auto first = alone.encode(large);
  EXPECT_EQ(team.encode(large), first);
  team.encode(golden_images(team)[0]);
  EXPECT_EQ(team.encode(large), first);
}

// Every patch reaches every cell; and rows are not columns.
TEST(VisionTower, attention_is_over_the_whole_image) {
  Tower tower(Isa::kScalar, Compute::kF32, 1);
  ImagePatches image = random_image(tower.dims, 4, 12);
  const auto before = tower.encode(image);
  image.values.back() += 3;
  const auto after = tower.encode(image);
  for (int cell = 0; cell < image.tokens(); ++cell) {
    const auto begin = before.begin() + cell * tower.dims.out_hidden_size;
    EXPECT_FALSE(std::equal(begin, begin + tower.dims.out_hidden_size,
                            after.begin() + cell * tower.dims.out_hidden_size))
        << cell;
  }
  ImagePatches turned = image;
  std::swap(turned.height, turned.width);
  EXPECT_NE(tower.encode(turned), after);
}

// The features of the reference in place of the placeholders, in one step and in such that cut the
// images.
TEST(VisionTower, prompts_with_images_have_the_logits_of_transformers) {
  const golden::Case golden("glm5_next");
  golden::Runner runner(golden.folder(), {.isa = golden::tested_isas().back()});
  ASSERT_TRUE(runner.model().can_see());
  ASSERT_TRUE(runner.model().info().images.has_value());
  const std::int32_t placeholder = runner.model().info().images->image_token;
  const auto& wide_ids = golden.expected("vision.ids").values;
  const std::vector<std::int32_t> ids(wide_ids.begin(), wide_ids.end());
  const auto& features = golden.expected("vision.features").values;
  const auto& expected = golden.expected("vision.logits").values;
  const auto hidden = static_cast<std::size_t>(runner.model().info().hidden_size);
  for (const std::size_t chunk : {ids.size(), std::size_t{7}, std::size_t{1}}) {
    SequenceCache sequence = start_sequence(runner.model(), runner.cache(), {});
    std::vector<float> logits(ids.size() * static_cast<std::size_t>(runner.vocab()));
    std::size_t seen = 0;
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      const auto tokens = std::span(ids).subspan(at, std::min(chunk, ids.size() - at));
      const int count = static_cast<int>(tokens.size());
      ASSERT_TRUE(sequence.reserve(count).has_value());
      const SequenceSpan span{.begin = 0,
                              .count = count,
                              .start = static_cast<int>(at),
                              .pages = sequence.pages(),
                              .state = sequence.state()};
      std::vector<InputRows> inputs;
      std::vector<std::int32_t> rows;
      for (int i = 0; i < count; ++i) {
        rows.push_back(i);
        if (tokens[static_cast<std::size_t>(i)] != placeholder) continue;
        inputs.push_back({.begin = i, .count = 1, .values = features.data() + seen++ * hidden});
      }
      runner.model().forward(
          runner.exec(), runner.cache(),
          {.tokens = tokens, .sequences = {&span, 1}, .logit_rows = rows, .inputs = inputs},
          std::span(logits).subspan(at * static_cast<std::size_t>(runner.vocab()),
                                    tokens.size() * static_cast<std::size_t>(runner.vocab())));
      sequence.commit(tokens);
    }
    EXPECT_EQ(seen * hidden, features.size());
    EXPECT_LE(golden::max_difference(logits, expected), 2e-3) << chunk;
  }
}

TEST(VisionTower, configs_that_ask_for_something_else_are_refused_by_name) {
  const Tower tower(Isa::kScalar, Compute::kF32, 1);
  const Json config = *tower.checkpoint->config().find("vision_config");
  const auto refusal = [&](const char* key, Json value) {
    Json changed = config;
    changed.set(key, std::move(value));
    const auto read = read_vision(changed, 64);
    EXPECT_FALSE(read.has_value()) << key;
    return read ? "" : read.error().message;
  };
  EXPECT_EQ(tower.dims.rms_norm_eps, 1e-5f);
  EXPECT_EQ(read_vision(config, 64)->block_eps, 1e-6f);
  EXPECT_THAT(refusal("hidden_act", Json("gelu")), HasSubstr("hidden_act"));
  EXPECT_THAT(refusal("attention_bias", Json(false)), HasSubstr("attention_bias"));
  EXPECT_THAT(refusal("num_heads", Json(3)), HasSubstr("3 heads"));
  EXPECT_THAT(refusal("in_channels", Json(1)), HasSubstr("in_channels"));
  EXPECT_THAT(refusal("out_hidden_size", Json(32)), HasSubstr("out_hidden_size"));
  EXPECT_THAT(refusal("window_size", Json(7)), HasSubstr("window_size"));
  EXPECT_THAT(refusal("rope_parameters", Json(Json::Object{{"rope_type", Json("yarn")}})),
              HasSubstr("yarn"));
}

}  // namespace
}  // namespace glint
