#include "server/anthropic_writer.h"

#include <array>
#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "chat/messages.h"
#include "server/http_text.h"

namespace glint {
namespace {

Json object(Json::Object members) {
  return Json(std::move(members));
}

Json event_object(const char* type, Json::Object members = {}) {
  members.insert(members.begin(), {"type", Json(type)});
  return Json(std::move(members));
}

// --- signatures ---

using HashKey = std::array<std::uint64_t, 2>;

void sip_round(std::array<std::uint64_t, 4>& v) {
  v[0] += v[1];
  v[1] = std::rotl(v[1], 13) ^ v[0];
  v[0] = std::rotl(v[0], 32);
  v[2] += v[3];
  v[3] = std::rotl(v[3], 16) ^ v[2];
  v[0] += v[3];
  v[3] = std::rotl(v[3], 21) ^ v[0];
  v[2] += v[1];
  v[1] = std::rotl(v[1], 17) ^ v[2];
  v[2] = std::rotl(v[2], 32);
}

// SipHash-2-4 of Aumasson and Bernstein.
std::uint64_t sip_hash(const HashKey& key, std::string_view text) {
  std::array<std::uint64_t, 4> v = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
                                    key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
  const auto absorb = [&v](std::uint64_t word) {
    v[3] ^= word;
    sip_round(v);
    sip_round(v);
    v[0] ^= word;
  };
  std::uint64_t word = 0;
  for (std::size_t index = 0; index < text.size(); ++index) {
    word |= static_cast<std::uint64_t>(static_cast<unsigned char>(text[index])) << (index % 8 * 8);
    if (index % 8 == 7) absorb(std::exchange(word, 0));
  }
  absorb(word | static_cast<std::uint64_t>(text.size()) << 56);
  v[2] ^= 0xff;
  for (int round = 0; round < 4; ++round) sip_round(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t begin = 0; begin < bytes.size(); begin += 3) {
    const std::string_view group = bytes.substr(begin, 3);
    std::uint32_t bits = 0;
    for (std::size_t index = 0; index < 3; ++index) {
      const char byte = index < group.size() ? group[index] : '\0';
      bits = bits << 8 | static_cast<unsigned char>(byte);
    }
    for (std::size_t digit = 0; digit < 4; ++digit) {
      out += digit <= group.size() ? kDigits[bits >> (18 - 6 * digit) & 63] : '=';
    }
  }
  return out;
}

// Clients only ask that a thought carries a signature. Ours is a keyed hash: this process could
// tell its own thoughts by it, nobody else learns anything, and thoughts of others are accepted
// just so.
std::string thought_signature(std::string_view thought) {
  static const auto kKeys = [] {
    std::random_device device;
    std::array<HashKey, 2> keys{};
    for (HashKey& key : keys) {
      for (std::uint64_t& word : key) word = static_cast<std::uint64_t>(device()) << 32 | device();
    }
    return keys;
  }();
  std::string bytes;
  for (const HashKey& key : kKeys) {
    const std::uint64_t hash = sip_hash(key, thought);
    for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(hash >> shift & 0xff);
  }
  return base64(bytes);
}

// --- the answer ---

// Events of one message -> the message.
class MessageFold {
 public:
  void add(const Json& event) {
    const std::string& type = event.find("type")->as_string();
    if (type == "message_start") {
      message_ = *event.find("message");
    } else if (type == "content_block_start") {
      block_ = *event.find("content_block");
      text_.clear();
    } else if (type == "content_block_delta") {
      add_delta(*event.find("delta"));
    } else if (type == "content_block_stop") {
      end_block();
    } else if (type == "message_delta") {
      for (const auto& [key, value] : event.find("delta")->as_object()) message_.set(key, value);
      message_.set("usage", *event.find("usage"));
    }
  }
  Json take() { return std::move(message_); }

 private:
  void add_delta(const Json& delta) {
    for (const char* name : {"text", "thinking", "partial_json"}) {
      if (const Json* piece = delta.find(name)) text_ += piece->as_string();
    }
    if (const Json* signature = delta.find("signature")) block_.set("signature", *signature);
  }
  void end_block() {
    const std::string& type = block_.find("type")->as_string();
    // Arguments that were cut off are closed where they end.
    if (type == "tool_use") {
      block_.set("input", arguments_object(text_));
    } else {
      block_.set(type, Json(text_));
    }
    message_.find("content")->push_back(std::move(block_));
  }

  Json message_;
  Json block_;        // the open one
  std::string text_;  // of its deltas
};

class MessagesWriter : public AnswerWriter {
 public:
  explicit MessagesWriter(bool stream) : stream_(stream) {}

  std::string begin(const AnswerStart& start) override {
    // What of it is cached is known when the engine takes it up, and told at the end.
    AnswerUsage known;
    known.usage.prompt_tokens = static_cast<int>(start.prompts.front()->ids.size());
    Json message = object({{"id", Json("msg_" + random_name(24))},
                           {"type", Json("message")},
                           {"role", Json("assistant")},
                           {"model", Json(start.model)},
                           {"content", Json(Json::Array{})},
                           {"stop_reason", Json()},
                           {"stop_sequence", Json()},
                           {"usage", usage_object(known)}});
    emit(event_object("message_start", {{"message", std::move(message)}}));
    std::string text = sent();
    return stream_ ? text + ping() : text;
  }

  std::string take(int choice, const ChatDelta& delta) override {
    tally_.take(choice, delta);
    for (const OutputEvent& event : delta.events) write(event);
    if (delta.kind == ChatDelta::Kind::kFinished) finish(delta);
    return sent();
  }

  std::string end() override {
    emit(event_object("message_delta",
                      {{"delta", std::move(ending_)}, {"usage", usage_object(tally_.sum())}}));
    emit(event_object("message_stop"));
    return sent();
  }

  Json whole() override { return fold_.take(); }

  std::string fail(const ApiError& error) override {
    return sse_event("error", anthropic_error_object(error, ""));
  }
  std::string ping() override { return sse_event("ping", event_object("ping")); }

 private:
  enum class Block { kNone, kThinking, kText, kTool };

  static Json usage_object(const AnswerUsage& sum) {
    const Usage& usage = sum.usage;
    return object(
        {{"input_tokens", Json(usage.prompt_tokens - usage.cached_tokens)},
         {"cache_creation_input_tokens", Json(0)},
         {"cache_read_input_tokens", Json(usage.cached_tokens)},
         {"output_tokens", Json(usage.completion_tokens)},
         {"output_tokens_details", object({{"thinking_tokens", Json(sum.reasoning_tokens)}})}});
  }

  void emit(const Json& event) {
    if (stream_) {
      text_ += sse_event(event.find("type")->as_string(), event);
    } else {
      fold_.add(event);
    }
  }
  std::string sent() { return std::exchange(text_, {}); }

  void open(Block kind, Json block) {
    close();
    open_ = kind;
    has_arguments_ = false;
    thought_.clear();
    ++index_;
    emit(event_object("content_block_start",
                      {{"index", Json(index_)}, {"content_block", std::move(block)}}));
  }

  void delta(const char* type, const char* name, const std::string& text) {
    emit(event_object(
        "content_block_delta",
        {{"index", Json(index_)}, {"delta", object({{"type", Json(type)}, {name, Json(text)}})}}));
  }

  void close() {
    const Block was = std::exchange(open_, Block::kNone);
    if (was == Block::kNone) return;
    if (was == Block::kThinking) delta("signature_delta", "signature", thought_signature(thought_));
    if (was == Block::kTool && !has_arguments_) delta("input_json_delta", "partial_json", "{}");
    emit(event_object("content_block_stop", {{"index", Json(index_)}}));
  }

  void write(const OutputEvent& event) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        return think(event.text);
      case OutputEvent::Kind::kContent:
        return say(event.text);
      case OutputEvent::Kind::kToolBegin:
        return open(Block::kTool,
                    object({{"type", Json("tool_use")},
                            {"id", Json(event.id.empty() ? "toolu_" + random_name(24) : event.id)},
                            {"name", Json(event.text)},
                            {"input", Json(Json::Object{})}}));
      case OutputEvent::Kind::kToolArgs:
        if (event.text.empty()) return;
        has_arguments_ = true;
        return delta("input_json_delta", "partial_json", event.text);
      case OutputEvent::Kind::kToolEnd:
        return close();
    }
  }

  void think(const std::string& text) {
    if (text.empty()) return;
    if (open_ != Block::kThinking) {
      open(Block::kThinking,
           object({{"type", Json("thinking")}, {"thinking", Json("")}, {"signature", Json("")}}));
    }
    thought_ += text;
    delta("thinking_delta", "thinking", text);
  }

  void say(const std::string& text) {
    if (text.empty()) return;
    if (open_ != Block::kText) open_text();
    delta("text_delta", "text", text);
  }

  void open_text() { open(Block::kText, object({{"type", Json("text")}, {"text", Json("")}})); }

  void finish(const ChatDelta& delta) {
    // Clients expect a block, even if there was nothing to say.
    if (index_ < 0) open_text();
    close();
    const bool by_string = delta.finish_reason == "stop" && !delta.stop_string.empty();
    const char* reason = by_string ? "stop_sequence" : "end_turn";
    if (delta.finish_reason == "length") reason = "max_tokens";
    if (delta.finish_reason == "tool_calls") reason = "tool_use";
    ending_ = object({{"stop_reason", Json(reason)},
                      {"stop_sequence", by_string ? Json(delta.stop_string) : Json()}});
  }

  const bool stream_;
  UsageTally tally_{1, 1};
  std::string text_;  // of events that are not sent yet
  MessageFold fold_;  // unless streamed
  Block open_ = Block::kNone;
  int index_ = -1;              // of the last block
  bool has_arguments_ = false;  // of the open call
  std::string thought_;         // of the open block
  Json ending_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_messages_writer(bool stream) {
  return std::make_unique<MessagesWriter>(stream);
}

}  // namespace glint
