// The options of one command, declared once: parsed, read from the environment, explained by --help
// and suggested after a typing mistake from the same list. The parsing library stays in program.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace glint {

class Flags {
 public:
  struct Spec {
    std::vector<std::string> names;  // "-c", "--ctx"; one bare word for a positional
    std::string value_name;          // empty: takes no value
    std::string help;
    std::string group;
    bool positional = false;
    bool repeatable = false;
    std::function<Status(const std::string&)> set;  // called for each value given

    std::string_view long_name() const;  // the first "--name", or the first name
    std::string environment() const;     // "GLINT_CTX"; empty when there is none
  };

  // The options declared next are listed under this title.
  void group(std::string title) { group_ = std::move(title); }

  // `names` is a comma-separated list, for example "-c,--ctx,--max-model-len". Targets outlive
  // parsing.
  void text(std::string_view names, std::string* target, std::string value_name, std::string help);
  void list(std::string_view names, std::vector<std::string>* target, std::string value_name,
            std::string help);
  void toggle(std::string_view names, bool* target, std::string help);
  void integer(std::string_view names, int* target, std::string value_name, std::string help,
               int least = 0, int most = std::numeric_limits<int>::max());
  void integer(std::string_view names, std::optional<int>* target, std::string value_name,
               std::string help, int least = 0, int most = std::numeric_limits<int>::max());
  void integers(std::string_view names, std::vector<int>* target, std::string value_name,
                std::string help, int least = 0);  // "1,8"
  void number(std::string_view names, std::optional<float>* target, std::string value_name,
              std::string help, float least, float most);
  void number(std::string_view names, double* target, std::string value_name, std::string help,
              double least, double most);
  void choice(std::string_view names, std::string* target, std::vector<std::string> choices,
              std::string help);
  void custom(std::string_view names, std::string value_name, std::string help,
              std::function<Status(const std::string&)> set);
  void positional(std::string name, std::string* target, std::string help);

  const std::vector<Spec>& specs() const { return specs_; }

 private:
  Spec& add(std::string_view names, std::string value_name, std::string help);
  std::string group_ = "Options";
  std::vector<Spec> specs_;
};

// One program of `glint`: chat, serve, ...
struct Command {
  std::string name;
  std::string summary;  // one line, for the list
  std::string usage;    // what follows "glint NAME"
  std::string notes;    // a few lines below the options; may be empty
  std::vector<std::string> examples;
  std::function<void(Flags&)> declare;
  std::function<int()> run;  // the exit code
};

// What --help prints.
std::string help_text(const Command& command, const Flags& flags);
// The word of `known` that `typed` most likely meant, if one is near enough.
std::optional<std::string> did_you_mean(std::string_view typed,
                                        const std::vector<std::string>& known);

// "20GiB", "512M", "1.5GB", "4096": bytes. K, M, G, T and KiB.. are powers of 1024; KB, MB, .. of
// 1000.
Result<std::uint64_t> parse_bytes(std::string_view text);
// 1234567890 -> "1.15 GiB".
std::string format_bytes(double bytes);
// A whole decimal number and nothing else.
std::optional<std::int64_t> parse_integer(std::string_view text);

}  // namespace glint
