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
  // Some tokens of a sequence: known ones, then guesses.
  struct Member {
    Sequence* sequence;
    int begin = 0;  // its first row of the batch
    int start = 0;  // the position of that
    int count = 0;
    int num_guesses = 0;
    std::size_t first_row = 0;  // of its rows of logits
    std::size_t num_prompt_rows = 0;
    bool samples = false;  // then one more row follows those, and one for each guess
    std::size_t question = 0;
    std::size_t first_snapshot = 0, num_snapshots = 0;

    // Known once the batch ran.
    std::size_t num_sampled = 0;  // rows that were sampled from, or failed to be
    int num_compared = 0;         // guesses that a sampled token was compared with
    int num_right = 0;
    bool ends = false;  // with the last of those rows
    // How many of its tokens stand: all but the guesses that are not what was sampled.
    int kept() const {
      return count - num_guesses + std::max(0, static_cast<int>(num_sampled) - 1);
    }
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
  // The next `count` tokens of the sequence; those beyond the known ones are its guesses. Errors:
  // kExhausted, and then it takes no part.
  Status add(Sequence& sequence, int count);
  // Runs the vision tower for the images that the tokens are of.
  void encode_images(const Model& model, Exec& exec);
  // Runs the model over the batch while `helper` asks the constraints, then judges and samples: of
  // the rows of a sequence in order, as long as its guesses are what comes out. `keep_hidden`: asks
  // for the states too.
  void run(const Model& model, Exec& exec, Cache& cache, ConstraintThread& helper,
           bool keep_hidden);
  // Enters the tokens that stand into the caches.
  void commit();

  std::span<const Member> members() const { return members_; }
  std::span<Row> rows_of(const Member& member) {
    return std::span(rows_).subspan(member.first_row, member.num_prompt_rows + member.num_sampled);
  }
  // The token at a position in [start, start + kept], the last one only if the member samples.
  std::int32_t token_at(const Member& member, int position) const;
  // After the final norm, of the same positions but the last.
  std::span<const float> hidden_at(const Member& member, int position) const;

 private:
  void reserve_snapshots(Member& member);
  void judge(Row& row, std::span<float> logits);
  void sample(Member& member);
  Result<Sample> sample_row(Member& member, int ahead, std::span<float> logits);
  std::span<float> logits_of(std::size_t row) {
    return std::span(logits_).subspan(row * vocab_size_, vocab_size_);
  }

  // Kept from step to step, so that a steady state allocates little.
  std::vector<std::int32_t> tokens_;
  std::vector<SequenceSpan> spans_;
  std::vector<StateSnapshot> snapshots_;
  std::vector<SnapshotPlan::Due> due_;  // of the member that is added
  std::vector<InputRows> inputs_;
  std::vector<std::int32_t> cache_names_;
  std::vector<Member> members_;  // of the spans
  std::vector<std::int32_t> logit_rows_;
  std::vector<Row> rows_;                // of the logits
  std::vector<std::size_t> first_rows_;  // of what can be done in parallel: all samples of a member
  std::vector<ConstraintThread::Question> questions_;
  std::vector<float> logits_;
  std::vector<float> hidden_;  // empty: not asked for
  std::size_t vocab_size_ = 0, hidden_size_ = 0;
};

}  // namespace glint
