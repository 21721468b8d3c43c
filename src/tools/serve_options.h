// The options of `glint serve`.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "server/server.h"
#include "tools/flags.h"
#include "tools/options.h"
#include "tools/session.h"

namespace glint {

struct ServeOptions {
  SessionOptions session;
  ServerOptions server;
  LogOptions log;
  // As given, before resolve_serve_options().
  std::vector<std::string> keys;
  std::vector<std::string> names;
  std::vector<std::string> cors_origins;
  std::string key_file, template_kwargs, sampling_overrides, script_file, effort_budgets;
  std::string reasoning_field = "both", tool_parser = "auto", reasoning_parser = "auto",
              tool_grammar = "strict", scheduling = "fcfs", anthropic_thinking = "auto";
  int body_mib = 0;  // 0: not given
};

void declare_serve(Flags& flags, ServeOptions* options);

// Turns what was given into what the server and the session take. Errors: kInvalidArgument, naming
// the option.
Status resolve_serve_options(ServeOptions& options);

}  // namespace glint
