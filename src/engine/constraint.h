// What a sequence may say next, decided outside the engine: grammars, forced calls, thinking
// budgets. The engine knows tokens and masks only.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace glint {

struct NextTokens {
  // Bit i % 32 of word i / 32: token i may come next. Empty: any may. Borrowed until the next call
  // of anything.
  std::span<const std::uint32_t> allowed = {};
  std::int32_t forced = -1;  // this token and no other; wins over `allowed`
};

// One sequence's. Calls never overlap, but come from different threads: next() runs on a helper
// thread while the model computes the logits that it is for.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // What may follow the tokens accepted so far. An error ends the request with it.
  virtual Result<NextTokens> next() = 0;
  // `token` was picked.
  virtual Status accept(std::int32_t token) = 0;
  // Forgets the last `count` accepted tokens: rejected drafts.
  virtual Status rollback(int count) = 0;
};

}  // namespace glint
