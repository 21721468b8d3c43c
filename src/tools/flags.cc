#include "tools/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

namespace glint {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

Result<int> checked_integer(const std::string& text, int least, int most) {
  const auto value = parse_integer(text);
  if (value && *value >= least && *value <= most) return static_cast<int>(*value);
  if (most == std::numeric_limits<int>::max()) {
    return invalid_argument(fmt::format("'{}' is no whole number of at least {}", text, least));
  }
  return invalid_argument(
      fmt::format("'{}' is no whole number between {} and {}", text, least, most));
}

Result<double> checked_number(const std::string& text, double least, double most) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && value >= least && value <= most) return value;
  if (std::isinf(most)) {
    return invalid_argument(fmt::format("'{}' is no number of at least {}", text, least));
  }
  return invalid_argument(fmt::format("'{}' is no number between {} and {}", text, least, most));
}

}  // namespace

std::string_view Flags::Spec::long_name() const {
  for (const std::string& name : names) {
    if (name.starts_with("--")) return name;
  }
  return names.front();
}

std::string Flags::Spec::environment() const {
  const std::string_view name = long_name();
  if (!name.starts_with("--")) return "";
  std::string variable = "GLINT_";
  for (const char c : name.substr(2)) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

Flags::Spec& Flags::add(std::string_view names, std::string value_name, std::string help) {
  Spec spec;
  spec.names = split(names, ',');
  spec.value_name = std::move(value_name);
  spec.help = std::move(help);
  spec.group = group_;
  specs_.push_back(std::move(spec));
  return specs_.back();
}

void Flags::text(std::string_view names, std::string* target, std::string value_name,
                 std::string help) {
  add(names, std::move(value_name), std::move(help)).set = [target](const std::string& value) {
    *target = value;
    return Status();
  };
}

void Flags::list(std::string_view names, std::vector<std::string>* target, std::string value_name,
                 std::string help) {
  Spec& spec = add(names, std::move(value_name), std::move(help));
  spec.repeatable = true;
  spec.set = [target](const std::string& value) {
    target->push_back(value);
    return Status();
  };
}

void Flags::toggle(std::string_view names, bool* target, std::string help) {
  add(names, "", std::move(help)).set = [target](const std::string& value) {
    *target = value == "true";
    return Status();
  };
}

void Flags::integer(std::string_view names, int* target, std::string value_name, std::string help,
                    int least, int most) {
  add(names, std::move(value_name), std::move(help)).set =
      [target, least, most](const std::string& value) -> Status {
    GLINT_TRY(*target, checked_integer(value, least, most));
    return {};
  };
}

void Flags::integer(std::string_view names, std::optional<int>* target, std::string value_name,
                    std::string help, int least, int most) {
  add(names, std::move(value_name), std::move(help)).set =
      [target, least, most](const std::string& value) -> Status {
    GLINT_TRY(*target, checked_integer(value, least, most));
    return {};
  };
}

void Flags::integers(std::string_view names, std::vector<int>* target, std::string value_name,
                     std::string help, int least) {
  add(names, std::move(value_name), std::move(help)).set =
      [target, least](const std::string& value) -> Status {
    std::vector<int> numbers;
    for (const std::string& part : split(value, ',')) {
      GLINT_TRY(const int number, checked_integer(part, least, std::numeric_limits<int>::max()));
      numbers.push_back(number);
    }
    *target = std::move(numbers);
    return {};
  };
}

void Flags::number(std::string_view names, std::optional<float>* target, std::string value_name,
                   std::string help, float least, float most) {
  add(names, std::move(value_name), std::move(help)).set =
      [target, least, most](const std::string& value) -> Status {
    GLINT_TRY(const double parsed, checked_number(value, least, most));
    *target = static_cast<float>(parsed);
    return {};
  };
}

void Flags::number(std::string_view names, double* target, std::string value_name, std::string help,
                   double least, double most) {
  add(names, std::move(value_name), std::move(help)).set =
      [target, least, most](const std::string& value) -> Status {
    GLINT_TRY(*target, checked_number(value, least, most));
    return {};
  };
}

void Flags::choice(std::string_view names, std::string* target, std::vector<std::string> choices,
                   std::string help) {
  std::string shown = fmt::format("{}", fmt::join(choices, "|"));
  add(names, shown, std::move(help)).set =
      [target, shown, choices = std::move(choices)](const std::string& value) -> Status {
    if (std::ranges::find(choices, value) == choices.end()) {
      return invalid_argument(fmt::format("'{}' is none of {}", value, shown));
    }
    *target = value;
    return {};
  };
}

void Flags::custom(std::string_view names, std::string value_name, std::string help,
                   std::function<Status(const std::string&)> set) {
  add(names, std::move(value_name), std::move(help)).set = std::move(set);
}

void Flags::positional(std::string name, std::string* target, std::string help) {
  Spec& spec = add(name, name, std::move(help));
  spec.positional = true;
  spec.set = [target](const std::string& value) {
    *target = value;
    return Status();
  };
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  const auto refused = [&] {
    return invalid_argument(
        fmt::format("'{}' is no size: write a number and a unit, for example 20GiB", text));
  };
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return refused();
  std::string unit;
  for (const char* c = stop; c != end; ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  double factor = 1;
  if (!unit.empty() && unit != "b") {
    const std::size_t power = std::string_view("kmgt").find(unit[0]);
    if (power == std::string_view::npos) return refused();
    const std::string rest = unit.substr(1);
    if (rest != "" && rest != "b" && rest != "ib") return refused();
    factor = std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * factor;
  if (!(bytes <= 9e18)) return refused();
  return static_cast<std::uint64_t>(bytes);
}

std::string format_bytes(double bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

}  // namespace glint
