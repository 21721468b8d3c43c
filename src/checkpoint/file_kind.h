// Recognises, by their first bytes, files that are not what their name says: what a failed
// download, a skipped git-lfs step or another format leaves behind. Also words for error messages.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace glint {

enum class ForeignKind { kGitLfsPointer, kWebPage, kGguf, kPickle };

// Ask only about a file that failed its own format's first check: two bytes are enough to be taken
// for a pickle. nullopt: nothing known.
std::optional<ForeignKind> foreign_kind(std::span<const std::byte> head);
std::optional<ForeignKind> foreign_kind(std::string_view head);

// The refusal of `file` with what it is and what to do.
Error wrong_kind(std::string_view file, ForeignKind kind);

// `name` as a JSON string, cut short when long: names come from files.
std::string quote_name(std::string_view name);

}  // namespace glint
