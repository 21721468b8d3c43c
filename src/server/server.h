// The HTTP server of one engine: the endpoints of OpenAI and Anthropic clients, health, metrics and
// a chat page. It owns a listening socket and one I/O thread; requests are prepared on a second
// thread, and the engine only posts back to the I/O thread, so nothing here ever waits for the
// engine. A program listens first, loads the model while /health says "loading", then attaches it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "chat/chat.h"
#include "server/api_call.h"

namespace glint {

struct ServerOptions {
  std::string host = "127.0.0.1";     // an IP address or "localhost"
  int port = 8080;                    // 0: any free one, see Server::port()
  std::vector<std::string> api_keys;  // empty: every request is accepted
  bool insecure_no_auth = false;      // allows a non-loopback host without a key
  std::vector<std::string>
      served_names;  // names of the model, at least one; the first is used when a request has none
  bool any_model = false;                    // accept every `model` value
  std::string version = "0.0.0";             // of the program: /version and the server header
  std::string model_root;                    // "root" of /v1/models: what the user called the model
  Json chat_template_kwargs;                 // null or object: under each request's own, key by key
  std::size_t max_body_bytes = 64u << 20;    // 413 beyond
  std::size_t max_header_bytes = 64u << 10;  // 431 beyond
  // What this process may have of memory, 0: whatever it takes. Within it, memory for requests, and
  // how many bytes of bodies that is enough for at once; beyond these there is 503.
  std::uint64_t memory_limit = 0;
  std::uint64_t request_memory = 0;
  bool mapped_weights = false;        // pages of files, which no limit counts
  std::size_t max_pending_bytes = 0;  // 0: any number
  double header_timeout_s = 10;       // 408; also for the first byte of a connection
  double body_idle_timeout_s = 60;    // 408
  double write_stall_timeout_s = 60;  // a client that does not read is cut off
  double keep_alive_timeout_s = 75;
  double request_timeout_s = 0;  // 0: none
  double sse_ping_s = 5;         // a comment whenever a stream was silent this long
  double drain_timeout_s = 30;   // for running requests after request_stop()
  int max_connections = 4096;
  double watchdog_s = 120;                       // /health fails when a step takes longer; 0: never
  int stream_interval = 1;                       // tokens of a chunk
  std::vector<std::string> cors_origins;         // web pages that may call; "*": all
  bool metrics_auth = false;                     // /metrics wants a key too
  std::string metrics_compat = "vllm,llamacpp";  // whose names metrics have, or "none"
  bool slots = false;                            // GET /slots is there
  std::string commit;                            // of the program's source; may be empty
  ApiSettings api;
};

// What introspection tells of the model, beside what requests need.
struct ServedInfo {
  ModelInfo model;
  // {"isa", "threads", "compute", "kernels": [{"type", "bytes", "kernel"}], "cache": {...}}
  Json machine;
  // Planned memory by what it is for, in bytes: "weights", "kv_cache", ...
  std::vector<std::pair<std::string, std::uint64_t>> memory = {};
};

class Server {
 public:
  // Opens the port and starts answering: /health 503 "loading", every guarded endpoint 503, until
  // attach(). Errors: kInvalidArgument (an option), kIo (the port is taken, the address is not
  // ours).
  static Result<std::unique_ptr<Server>> listen(ServerOptions options);
  // Stops at once if run() was not left yet.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  // "http://127.0.0.1:8080"
  const std::string& url() const;
  // From now on requests are answered. Borrows the engine until this server is destroyed: destroy
  // the server first.
  void attach(Engine& engine, std::shared_ptr<const TextAssets> text, ServedInfo info);
  // Waits until request_stop() was called and everything is answered or cut off. True after a clean
  // drain.
  bool run();
  // Drains: no new connections or requests, running ones get drain_timeout_s. A second call cuts
  // them off. Callable from any thread and from a signal handler (one write() to an eventfd).
  void request_stop() noexcept;

 private:
  Server();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glint
