// How long a chunk may be while one sequence is all there is. Long chunks cost less a token, but
// who arrives or cancels waits for the step to end: so a chunk is meant to take about a second.
#pragma once

#include <algorithm>

namespace glint {

class ChunkPacer {
 public:
  static constexpr double kStepSeconds = 1.0;

  // Never less than `least` tokens, nor more than `most`.
  ChunkPacer(int least, int most) : least_(least), most_(std::max(least, most)), length_(most_) {}

  int length() const { return length_; }
  // A chunk of `count` tokens took this long. Short ones say little, and are not looked at.
  void ran(int count, double seconds) {
    if (count < least_ || !(seconds > 0)) return;
    const double fitting = count * (kStepSeconds / seconds);
    // Growing is slow: later chunks of a prompt take longer.
    const double bounded = std::min({fitting, length_ * 2.0, static_cast<double>(most_)});
    length_ = std::max(least_, static_cast<int>(bounded));
  }

 private:
  int least_, most_, length_;
};

}  // namespace glint
