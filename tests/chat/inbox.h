// Everything the sink of a turn got, for a thread that waits for the end.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "chat/chat.h"

namespace glint {

class Inbox {
 public:
  DeltaSink sink() {
    return [this](ChatDelta delta) {
      const std::lock_guard lock(mutex_);
      deltas_.push_back(std::move(delta));
      changed_.notify_all();
    };
  }
  ChatDelta wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60),
                                  [this] { return count(ChatDelta::Kind::kFinished) > 0; }));
    return deltas_.empty() ? ChatDelta() : deltas_.back();
  }
  void wait_for_output() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60),
                                  [this] { return count(ChatDelta::Kind::kOutput) > 0; }));
  }
  std::string text(OutputEvent::Kind kind) {
    const std::lock_guard lock(mutex_);
    std::string out;
    for (const ChatDelta& delta : deltas_) {
      for (const OutputEvent& event : delta.events) {
        if (event.kind == kind) out += event.text;
      }
    }
    return out;
  }
  std::string content() { return text(OutputEvent::Kind::kContent); }
  std::vector<std::int32_t> tokens() {
    const std::lock_guard lock(mutex_);
    std::vector<std::int32_t> out;
    for (const ChatDelta& delta : deltas_)
      out.insert(out.end(), delta.tokens.begin(), delta.tokens.end());
    return out;
  }
  std::size_t num_logprobs() {
    const std::lock_guard lock(mutex_);
    std::size_t sum = 0;
    for (const ChatDelta& delta : deltas_) sum += delta.logprobs.size();
    return sum;
  }
  std::vector<ChatDelta> deltas() {
    const std::lock_guard lock(mutex_);
    return deltas_;
  }
  int num_finished() {
    const std::lock_guard lock(mutex_);
    return count(ChatDelta::Kind::kFinished);
  }

 private:
  int count(ChatDelta::Kind kind) const {
    int found = 0;
    for (const ChatDelta& delta : deltas_) found += delta.kind == kind ? 1 : 0;
    return found;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ChatDelta> deltas_;
};

}  // namespace glint
