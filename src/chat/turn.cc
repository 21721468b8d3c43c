#include <mutex>
#include <utility>

#include "chat/chat.h"
#include "chat/messages.h"
#include "chat/turn_pipe.h"

namespace glint {

// Shared by the turn's owner and the engine's sink. The sink may run before submit() has handed out
// the ticket, hence the flag beside it.
struct Turn::State {
  std::shared_ptr<const TextAssets> assets;
  std::shared_ptr<const PreparedPrompt> prompt;
  std::optional<TurnPipe> pipe;  // engine thread only

  std::mutex mutex;  // guards what follows
  Ticket ticket;
  bool wants_cancel = false;
  bool finished = false;

  void cancel() {
    const std::lock_guard lock(mutex);
    wants_cancel = true;
    if (!finished) ticket.cancel();
  }

  void keep(Ticket submitted) {
    const std::lock_guard lock(mutex);
    ticket = std::move(submitted);
    if (wants_cancel && !finished) ticket.cancel();
  }

  void take(TokenEvent event) {
    if (event.kind == TokenEvent::Kind::kFinished) {
      const std::lock_guard lock(mutex);
      finished = true;
    }
    pipe->take(std::move(event));
  }
};

Turn::Turn() = default;
Turn::Turn(Turn&&) noexcept = default;
Turn& Turn::operator=(Turn&& other) noexcept {
  if (this != &other) {
    if (state_) state_->cancel();
    state_ = std::move(other.state_);
  }
  return *this;
}
Turn::~Turn() {
  if (state_) state_->cancel();
}
void Turn::cancel() {
  if (state_) state_->cancel();
}
const PreparedPrompt& Turn::prompt() const {
  return *state_->prompt;
}

Result<Turn> start_turn(Engine& engine, std::shared_ptr<const TextAssets> assets,
                        ChatRequest request, DeltaSink sink) {
  GLINT_TRY(PreparedPrompt prompt, assets->prepare(request));
  auto shared = std::make_shared<const PreparedPrompt>(std::move(prompt));
  return start_prepared_turn(engine, std::move(assets), std::move(request), std::move(shared),
                             std::move(sink));
}

Result<Turn> start_prepared_turn(Engine& engine, std::shared_ptr<const TextAssets> assets,
                                 ChatRequest request, std::shared_ptr<const PreparedPrompt> prompt,
                                 DeltaSink sink) {
  GLINT_TRY(GenerateRequest generate,
            assets->to_generate_request(request, *prompt, engine.options().context));
  TurnPipe::Options options;
  options.raw = request.raw;
  options.starts_in_thinking = prompt->ends_in_thinking;
  if (request.tool_choice.kind != ToolChoice::Kind::kNone) {
    GLINT_TRY(options.tools, normalise_tools(request.tools));
  }
  options.parallel_tool_calls = request.parallel_tool_calls;
  options.stops = std::move(request.stop);
  options.logprobs = request.top_logprobs >= 0;
  options.tool_format = assets->tool_format();
  options.reasoning_format = assets->reasoning_format();
  options.keep_special = request.keep_special;

  auto state = std::make_shared<Turn::State>();
  state->assets = std::move(assets);
  state->prompt = std::move(prompt);
  // A plain pointer: the pipe lives inside the state that the engine's sink keeps alive.
  state->pipe.emplace(state->assets->tokenizer(), std::move(options), std::move(sink),
                      [raw = state.get()] { raw->cancel(); });
  GLINT_TRY(Ticket ticket, engine.submit(std::move(generate), [state](TokenEvent event) {
    state->take(std::move(event));
  }));
  state->keep(std::move(ticket));
  Turn turn;
  turn.state_ = std::move(state);
  return turn;
}

}  // namespace glint
