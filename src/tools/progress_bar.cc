#include "tools/progress_bar.h"

#include <fmt/format.h>

#include <cstdio>

#include "tools/flags.h"

namespace glint {
namespace {

constexpr double kStep = 0.01;
constexpr int kWidth = 40;

}  // namespace

void ProgressBar::show(std::uint64_t done, std::uint64_t total) {
  if (total == 0) return;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  if (share < shown_ + kStep && done != total) return;
  shown_ = share;
  const int filled = static_cast<int>(share * kWidth);
  std::fputs(fmt::format("\r\033[K{} [{:=<{}}{:{}}] {:3.0f}% of {}", verb_, "", filled, "",
                         kWidth - filled, share * 100, format_bytes(static_cast<double>(total)))
                 .c_str(),
             stderr);
  visible_ = true;
}

ProgressBar::~ProgressBar() {
  if (visible_) std::fputs("\r\033[K", stderr);
}

}  // namespace glint
