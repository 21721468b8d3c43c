// Exact-match tasks: items of an evals.jsonl, and whether an answer is the expected one. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace glint {

struct TaskItem {
  std::string id;
  std::string task;
  Json messages;
  Json tools;  // null or array
  bool enable_thinking = false;
  Json expected;  // a string, or {"name", "arguments"}
};

// One JSON object per line. Errors name the file and the line.
Result<std::vector<TaskItem>> parse_task_items(std::string_view text, std::string_view file_name);

// What follows the thinking: a string, or the tool call {"name", "arguments"} if it is exactly one.
// Arguments that the tool does not declare as strings are read as JSON where they are JSON.
Json parse_answer(std::string_view output, const TaskItem& item);

// Equal as Python compares JSON: numbers by value, objects whatever the order of their keys.
bool same_json(const Json& a, const Json& b);

inline constexpr std::string_view kUnjudgedTask = "story";  // has no right answer

}  // namespace glint
