// What the server counts, as Prometheus text: under vLLM's names and llama-server's, so that their
// dashboards and routers work, and glint_ names for what they lack. Counts only what it is told;
// everything here is called on one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "chat/chat.h"

namespace glint {

struct MetricsOptions {
  std::string model_name;  // the label of the vllm: group
  std::string version;
  bool vllm = true;
  bool llamacpp = true;
};

// Which groups a list like "vllm,llamacpp", "vllm" or "none" asks for. Errors: kInvalidArgument.
Status choose_metric_groups(std::string_view list, MetricsOptions& options);

// Known once a model is loaded.
struct MetricsModel {
  int block_size = 0;            // tokens of a cache page
  std::size_t num_blocks = 0;    // cache pages
  std::string cache_dtype = {};  // "bf16", "fp8"
  int max_model_len = 0;
};

// One request that the engine had to do with, however it ended.
struct RequestRecord {
  std::string finished_reason;  // "stop", "length", "tool_calls", "abort"; all else is "error"
  int prompt_tokens = 0;
  int cached_tokens = 0;
  int completion_tokens = 0;
  int reasoning_tokens = 0;
  int max_tokens = 0;  // 0: the request set none
  int n = 1;
  double queue_s = 0, prefill_s = 0, decode_s = 0;
  double e2e_s = 0;  // from its first byte to its last
};

// Speculative decoding since the start.
struct SpecDecodeTotals {
  std::uint64_t drafts = 0, draft_tokens = 0, accepted_tokens = 0;
  std::span<const std::uint64_t> accepted_per_position;
};

class Metrics {
 public:
  explicit Metrics(MetricsOptions options);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The groups of the model appear from here on; what is told of requests before is dropped.
  void attach(const MetricsModel& model);

  void on_first_token(double seconds);  // since the request came
  // `tokens` tokens of one choice came `seconds` after the ones before them.
  void on_token_gap(double seconds, int tokens = 1);
  void on_request_done(const RequestRecord& record);
  // `path_label` names a route, never a client's text.
  void on_http(std::string_view path_label, int status);
  // Of a request body. The first hundred names count by name, later ones as "other".
  void on_unknown_field(std::string_view name);
  // Totals since the engine's start: call it before text().
  void on_engine(const EngineStats& stats);
  void on_connections(int open);

  // Each of these adds its metrics when it is first called.
  // What is planned, and "limit".
  void on_memory(std::string_view kind, std::uint64_t nbytes);  // "weights", "kv_cache", ...
  void on_spec_decode(const SpecDecodeTotals& totals);
  void on_expert_tokens(std::string_view layer_group, std::uint64_t total);
  void on_streamed_experts(const ExpertStats& stats);
  void on_numa_remote_ratio(double ratio);  // of reads that went to another node's memory

  // Exposition format 0.0.4, with process_* read now.
  std::string text() const;
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glint
