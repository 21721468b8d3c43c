// How far a long piece of work is, on one line of a terminal that vanishes at the end.
#pragma once

#include <cstdint>
#include <string>

namespace glint {

class ProgressBar {
 public:
  explicit ProgressBar(std::string verb) : verb_(std::move(verb)) {}
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Bytes. Draws when a hundredth more is done.
  void show(std::uint64_t done, std::uint64_t total);

 private:
  std::string verb_;
  double shown_ = -1;
  bool visible_ = false;
};

}  // namespace glint
