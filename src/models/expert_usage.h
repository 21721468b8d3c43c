// How often which experts are chosen: lately, which decides who leaves memory, and ever, which is
// kept between runs and decides who is read first. Knows no memory and no threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace glint {

class ExpertUsage {
 public:
  // num_experts of each sparse layer, of which each token chooses `experts_per_token`.
  ExpertUsage(std::vector<int> num_experts, int experts_per_token);

  // A step of `tokens` tokens reached this layer.
  void begin_step(int layer, int tokens);
  // `tokens` of them chose this expert.
  void use(int layer, int expert, int tokens);

  // The expected time until the expert is needed, in steps, when the layer at work is `now`: the
  // rest of the way through the layers, and the steps that will pass it by.
  double steps_to_next_use(int layer, int expert, int now) const;
  // The share of all tokens so far, those of former runs included, that chose it.
  double share(int layer, int expert) const;
  bool has_history() const { return has_history_; }
  // The experts in order of falling share, those that nobody chose left out.
  struct Place {
    int layer = 0, expert = 0;
  };
  std::vector<Place> by_share() const;

  // Adds what save() wrote with the same `model`, any text that tells models apart. Errors:
  // kNotFound, kIo, kCorrupt, and kInvalidArgument for another model's; then nothing is added.
  Status load(const std::filesystem::path& path, const std::string& model);
  // Replaces the file, and makes its folder.
  Status save(const std::filesystem::path& path, const std::string& model) const;

 private:
  struct Expert {
    double uses = 0;         // tokens, ever
    float recent = 0;        // steps that used it, older ones counting less, as of `step`
    std::uint32_t step = 0;  // of its layer
  };
  struct Layer {
    double tokens = 0;       // ever
    std::uint32_t step = 0;  // of this run
    std::vector<Expert> experts;
  };
  double chance(const Layer& layer, const Expert& expert) const;

  std::vector<Layer> layers_;
  int experts_per_token_;
  bool has_history_ = false;
};

}  // namespace glint
