// Asks constraints what may come next, on a thread of its own, so that the answers are there when
// the model's are.
#pragma once

#include <memory>
#include <span>

#include "base/result.h"
#include "engine/constraint.h"

namespace glint {

class ConstraintThread {
 public:
  struct Question {
    TokenConstraint* constraint;
    Result<NextTokens> answer = NextTokens{};
  };

  ConstraintThread();
  ~ConstraintThread();
  ConstraintThread(const ConstraintThread&) = delete;
  ConstraintThread& operator=(const ConstraintThread&) = delete;

  // Calls next() once for each. The questions and their constraints are the thread's until wait()
  // has returned, which must follow.
  void start(std::span<Question> questions);
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glint
