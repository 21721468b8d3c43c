#include "models/expert_usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/file.h"
#include "base/json.h"

namespace glint {
namespace {

constexpr int kVersion = 1;
constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;
constexpr double kHalfLife = 64;    // steps after which a use counts half
constexpr double kPriorSteps = 16;  // that the share of former runs stands for
constexpr double kLeastChance = 1e-4;
// Beyond so many tokens what is saved is halved: a model may get other work to do.
constexpr double kMostTokens = 4e6;

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

double decayed(std::uint32_t steps) {
  return std::exp2(-static_cast<double>(steps) / kHalfLife);
}

bool is_count(const Json& value) {
  return value.is_number() && value.as_double() >= 0 && value.as_double() < 1e15;
}

}  // namespace

ExpertUsage::ExpertUsage(std::vector<int> num_experts, int experts_per_token)
    : experts_per_token_(experts_per_token) {
  for (const int n : num_experts) layers_.push_back({.experts = std::vector<Expert>(size(n))});
}

void ExpertUsage::begin_step(int layer, int tokens) {
  ++layers_[size(layer)].step;
  layers_[size(layer)].tokens += tokens;
}

void ExpertUsage::use(int layer, int expert, int tokens) {
  Layer& l = layers_[size(layer)];
  Expert& e = l.experts[size(expert)];
  e.uses += tokens;
  e.recent = static_cast<float>(e.recent * decayed(l.step - e.step)) + 1;
  e.step = l.step;
}

double ExpertUsage::share(int layer, int expert) const {
  const Layer& l = layers_[size(layer)];
  // Before anything is known all are alike; one token more than were seen keeps that in mind.
  const double even = std::min(1.0, experts_per_token_ / static_cast<double>(l.experts.size()));
  return (l.experts[size(expert)].uses + even) / (l.tokens + 1);
}

double ExpertUsage::steps_to_next_use(int layer, int expert, int now) const {
  const Layer& l = layers_[size(layer)];
  const Expert& e = l.experts[size(expert)];
  const double recent = e.recent * decayed(l.step - e.step);
  const double steps = (1 - decayed(l.step)) / (1 - decayed(1));
  const double chance = std::clamp(
      (recent + kPriorSteps * share(layer, expert)) / (steps + kPriorSteps), kLeastChance, 1.0);
  const int num_layers = static_cast<int>(layers_.size());
  const int ahead = (layer - now + num_layers) % num_layers;
  // What is not needed by the layer at work is needed by it a whole round later.
  const double way = static_cast<double>(ahead == 0 ? num_layers : ahead) / num_layers;
  return way + (1 - chance) / chance;
}

std::vector<ExpertUsage::Place> ExpertUsage::by_share() const {
  std::vector<Place> places;
  for (int l = 0; l < static_cast<int>(layers_.size()); ++l) {
    for (int e = 0; e < static_cast<int>(layers_[size(l)].experts.size()); ++e) {
      if (layers_[size(l)].experts[size(e)].uses > 0) places.push_back({l, e});
    }
  }
  std::ranges::stable_sort(places, [this](const Place& a, const Place& b) {
    return share(a.layer, a.expert) > share(b.layer, b.expert);
  });
  return places;
}

Status ExpertUsage::load(const std::filesystem::path& path, const std::string& model) {
  GLINT_TRY(const std::string text, read_text_file(path, kMaxFileBytes));
  const auto json = parse_json(text, {.max_depth = 8, .max_bytes = kMaxFileBytes});
  const auto damaged = [&](std::string_view what) {
    return corrupt(fmt::format("{} is no expert history: {}", path.string(), what));
  };
  if (!json) return damaged(json.error().message);
  const Json* version = json->find("expert_history");
  if (version == nullptr || !version->is_number() || version->as_double() != kVersion)
    return damaged("\"expert_history\" is not 1");
  const Json* name = json->find("model");
  if (name == nullptr || !name->is_string() || name->as_string() != model)
    return invalid_argument(path.string() + " is the expert history of another model");
  const Json* layers = json->find("layers");
  if (layers == nullptr || !layers->is_array()) return damaged("it has no \"layers\"");
  if (layers->as_array().size() != layers_.size())
    return invalid_argument(path.string() + " is the expert history of another model");
  std::vector<Layer> added = layers_;
  for (std::size_t l = 0; l < added.size(); ++l) {
    const Json& layer = layers->as_array()[l];
    const Json* tokens = layer.is_object() ? layer.find("tokens") : nullptr;
    const Json* uses = layer.is_object() ? layer.find("uses") : nullptr;
    if (tokens == nullptr || !is_count(*tokens) || uses == nullptr || !uses->is_array() ||
        uses->as_array().size() != added[l].experts.size())
      return damaged(fmt::format("layer {} is malformed", l));
    added[l].tokens += tokens->as_double();
    for (std::size_t e = 0; e < added[l].experts.size(); ++e) {
      const Json& count = uses->as_array()[e];
      if (!is_count(count) || count.as_double() > tokens->as_double())
        return damaged(fmt::format("layer {} is malformed", l));
      added[l].experts[e].uses += count.as_double();
    }
  }
  layers_ = std::move(added);
  has_history_ = std::ranges::any_of(layers_, [](const Layer& l) { return l.tokens > 0; });
  return {};
}

Status ExpertUsage::save(const std::filesystem::path& path, const std::string& model) const {
  double most = 0;
  for (const Layer& layer : layers_) most = std::max(most, layer.tokens);
  const double factor = most > kMostTokens ? 0.5 : 1;
  const auto count = [factor](double n) {
    return static_cast<std::int64_t>(std::floor(n * factor));
  };
  Json layers(Json::Array{});
  for (const Layer& layer : layers_) {
    Json uses(Json::Array{}), entry;
    for (const Expert& expert : layer.experts) uses.push_back(count(expert.uses));
    entry.set("tokens", count(layer.tokens));
    entry.set("uses", std::move(uses));
    layers.push_back(std::move(entry));
  }
  Json json;
  json.set("expert_history", kVersion);
  json.set("model", model);
  json.set("layers", std::move(layers));
  if (path.has_parent_path()) {
    std::error_code failed;
    std::filesystem::create_directories(path.parent_path(), failed);
    if (failed)
      return io_error(fmt::format("{}: {}", path.parent_path().string(), failed.message()));
  }
  return write_file_atomically(path, json.dump() + "\n");
}

}  // namespace glint
