// The text of a custom tool's call out of the arguments that the model wrote for the function that
// stands for it, {"input": "..."}, piece by piece.
#pragma once

#include <string>
#include <string_view>

namespace glint {

class CustomInput {
 public:
  // The next piece of the arguments' JSON; the text that it completes.
  std::string push(std::string_view piece);
  // After the last piece: what is still to come. Arguments of another form are the text themselves.
  std::string finish();

 private:
  enum class State { kBefore, kInside, kAfter, kOther };
  std::string unescape();

  State state_ = State::kBefore;
  std::string all_;      // until the text begins, and for as long as it is of another form
  std::string pending_;  // of the text, not unescaped yet
};

}  // namespace glint
