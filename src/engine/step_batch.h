// What one step runs: tokens of several sequences, and what comes of their logits. Knows neither
// which sequences there are besides nor how they hear of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/constraint_thread.h"
#include "engine/sequence.h"
#include "models/model.h"

namespace glint {

class StepBatch {
 public:
  // Some tokens of a sequence.
  struct Member {
    Sequence* sequence;
    std::size_t first_row = 0;  // of its rows of logits
    std::size_t num_prompt_rows = 0;
    bool samples = false;  // then one more row follows those
    std::size_t question = 0;
  };
  // What a row of logits says: how likely the prompt's next token was, or which token comes next.
  struct Row {
    std::size_t member = 0;
    std::int32_t prompt_token = -1;  // -1: the row is sampled from
    bool is_broken = false;          // logits that are not finite
    Status status = {};
    PromptLogprob judged = {};
    Sample sample = {};
  };

  void clear();
  bool empty() const { return members_.empty(); }
  int num_tokens() const { return static_cast<int>(tokens_.size()); }
  // The next `count` tokens of the sequence. Errors: kExhausted, and then it takes no part.
  Status add(Sequence& sequence, int count);
  // Runs the model over the batch while `helper` asks the constraints, commits the tokens to their
  // caches, then judges and samples.
  void run(const Model& model, Exec& exec, Cache& cache, ConstraintThread& helper);

  std::span<const Member> members() const { return members_; }
  std::span<Row> rows_of(const Member& member) {
    return std::span(rows_).subspan(member.first_row, member.num_prompt_rows + member.samples);
  }

 private:
  void run_row(std::size_t index, std::span<float> logits);
  Result<Sample> sample(const Member& member, std::span<float> logits);

  // Kept from step to step, so that a steady state allocates little.
  std::vector<std::int32_t> tokens_;
  std::vector<SequenceSpan> spans_;
  std::vector<Member> members_;  // of the spans
  std::vector<std::int32_t> logit_rows_;
  std::vector<Row> rows_;  // of the logits
  std::vector<ConstraintThread::Question> questions_;
  std::vector<float> logits_;
};

}  // namespace glint
