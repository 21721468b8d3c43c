#include "tools/program.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace glint {
namespace {

std::string overview(const std::vector<Command>& commands) {
  std::string out =
      "glint runs and serves the GLM mixture-of-experts family on CPUs.\n\n"
      "Usage: glint COMMAND [MODEL] [options]\n\nCommands:\n";
  for (const Command& command : commands) {
    out += fmt::format("  {:<10} {}\n", command.name, command.summary);
  }
  out +=
      "\nMODEL is a Hugging Face folder with safetensors, or a GGUF file. Without one, or with "
      "`demo`,\nthe small model that ships with glint is used.\n\n"
      "Start here:\n"
      "  glint chat                    talk to the demo model\n"
      "  glint inspect ./GLM-4.7-Flash what a model is, what it costs, and whether it will run\n"
      "  glint COMMAND --help          the options of a command\n"
      "  glint --version\n";
  return out;
}

// Declares one option to the library. Errors travel as its own exception, caught in parse().
void declare(CLI::App& app, const Flags::Spec& spec) {
  const std::string names = fmt::format("{}", fmt::join(spec.names, ","));
  const auto set = [&spec](const std::string& value) {
    if (const Status status = spec.set(value); !status) {
      throw CLI::ValidationError(std::string(spec.long_name()), status.error().message);
    }
  };
  CLI::Option* option = nullptr;
  if (!spec.positional && spec.value_name.empty()) {
    option = app.add_flag_function(
        names, [set](std::int64_t count) { set(count > 0 ? "true" : "false"); });
  } else {
    option = app.add_option(names, [set](const CLI::results_t& values) {
      for (const std::string& value : values) set(value);
      return true;
    });
    option->expected(1);
    option->multi_option_policy(spec.repeatable ? CLI::MultiOptionPolicy::TakeAll
                                                : CLI::MultiOptionPolicy::TakeLast);
  }
  if (const std::string variable = spec.environment(); !variable.empty()) {
    option->envname(variable);
  }
}

std::vector<std::string> option_names(const Flags& flags) {
  std::vector<std::string> names = {"--help"};
  for (const Flags::Spec& spec : flags.specs()) {
    if (!spec.positional) names.insert(names.end(), spec.names.begin(), spec.names.end());
  }
  return names;
}

Error unexpected(const std::string& word, const Flags& flags, const Command& command) {
  if (!word.starts_with("-") || word == "-") {
    return invalid_argument(
        fmt::format("unexpected argument '{}'; try `glint {} --help`", word, command.name));
  }
  const std::string name = word.substr(0, word.find('='));
  const auto near = did_you_mean(name, option_names(flags));
  return invalid_argument(
      near ? fmt::format("unknown option '{}'; did you mean {}?", name, *near)
           : fmt::format("unknown option '{}'; try `glint {} --help`", name, command.name));
}

Status parse(const Flags& flags, const Command& command, std::vector<std::string> arguments) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  try {
    for (const Flags::Spec& spec : flags.specs()) declare(app, spec);
    std::ranges::reverse(arguments);  // the library takes them from the back
    app.parse(arguments);
  } catch (const CLI::Error& error) {
    return invalid_argument(error.what());
  }
  const std::vector<std::string> rest = app.remaining();
  if (!rest.empty()) return unexpected(rest.front(), flags, command);
  return {};
}

// llama-server's "-np 4" would read as "-n p": give it its long name, where the command has one.
void expand_two_letter_names(const Flags& flags, std::vector<std::string>& arguments) {
  for (const Flags::Spec& spec : flags.specs()) {
    for (const std::string& name : spec.names) {
      if (name != "--parallel") continue;
      std::ranges::replace(arguments, std::string("-np"), name);
    }
  }
}

bool asks_for_help(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") return false;
    if (argument == "--help" || argument == "-h") return true;
  }
  return false;
}

int run_named(const Command& command, std::vector<std::string> arguments) {
  Flags flags;
  command.declare(flags);
  if (asks_for_help(arguments)) {
    std::fputs(help_text(command, flags).c_str(), stdout);
    return kExitOk;
  }
  expand_two_letter_names(flags, arguments);
  if (const Status parsed = parse(flags, command, std::move(arguments)); !parsed) {
    return complain(parsed.error().message, kExitUsage);
  }
  return command.run();
}

}  // namespace

int complain(std::string_view message, int code) {
  std::fputs(fmt::format("glint: {}\n", message).c_str(), stderr);
  return code;
}

std::string_view version() {
  return GLINT_VERSION;
}

std::string_view commit() {
  return GLINT_COMMIT;
}

int run_program(const std::vector<Command>& commands, const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fputs(overview(commands).c_str(), stderr);
    return kExitUsage;
  }
  const std::string& name = arguments.front();
  if (name == "--help" || name == "-h" || (name == "help" && arguments.size() == 1)) {
    std::fputs(overview(commands).c_str(), stdout);
    return kExitOk;
  }
  if (name == "--version" || name == "-V") {
    std::fputs(fmt::format("glint {}\n", version()).c_str(), stdout);
    return kExitOk;
  }
  const std::string& wanted = name == "help" ? arguments[1] : name;
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (command.name == wanted) {
      if (name == "help") return run_named(command, {"--help"});
      return run_named(command, {arguments.begin() + 1, arguments.end()});
    }
    names.push_back(command.name);
  }
  const auto near = did_you_mean(wanted, names);
  return complain(near ? fmt::format("unknown command '{}'; did you mean {}?", wanted, *near)
                       : fmt::format("unknown command '{}'; try `glint --help`", wanted),
                  kExitUsage);
}

}  // namespace glint
