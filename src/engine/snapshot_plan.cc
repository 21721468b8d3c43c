#include "engine/snapshot_plan.h"

#include <algorithm>

#include "base/check.h"
#include "cache/cache.h"
#include "models/batch.h"

namespace glint {
namespace {

int page_floor(int length) {
  return std::max(0, length) / kPageSize * kPageSize;
}

}  // namespace

void SnapshotPlan::want(int length) {
  GLINT_CHECK(length >= 0 && length % kPageSize == 0);
  const auto place = std::ranges::lower_bound(wanted_, length);
  if (place == wanted_.end() || *place != length) wanted_.insert(place, length);
}

void SnapshotPlan::start(const Start& start) {
  asked_ = start.cached;
  last_of_prompt_ = page_floor(start.known - 1);
  want(last_of_prompt_);
  want(page_floor(start.known - 1 - kOpening));
  want(page_floor(start.branch));
  // Of one prompt no more than half of what there is room for.
  const int most = std::max(1, start.num_kept / 2);
  const int spacing =
      std::max(kLeastSpacing, page_floor((start.known - start.cached) / most + kPageSize));
  for (int at = spacing; at < start.known - spacing / 2; at += spacing) want(at);
  std::erase_if(wanted_, [&](int length) { return length <= start.cached; });
}

void SnapshotPlan::due(int start, int standing, std::vector<Due>& out) {
  const auto end = std::ranges::upper_bound(wanted_, standing);
  const auto ask = [&](int length, bool replaces) {
    if (length <= asked_ || length <= start - kMaxGuesses) return;
    out.push_back({length, replaces});
    asked_ = length;
  };
  for (auto it = wanted_.begin(); it != end; ++it) ask(*it, false);
  wanted_.erase(wanted_.begin(), end);
  const int newest = page_floor(standing);
  if (newest > last_of_prompt_) ask(newest, true);
}

}  // namespace glint
