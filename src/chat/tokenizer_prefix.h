// What a tokenizer puts in front of every text, as tokenizer.json's post-processor says.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace glint {

// The tokens in front of a single text: the post-processor's; else bos_token where
// tokenizer_config.json has add_bos_token; else GLM's [gMASK]<sop> where the chat template begins
// with them. Empty when there are none. Anything malformed says nothing.
std::vector<std::int32_t> prefix_tokens(std::string_view tokenizer_json,
                                        const Json& tokenizer_config,
                                        std::string_view template_source,
                                        const Tokenizer& tokenizer);

// The text of the top-level member `key` of a JSON object, without parsing the rest (a tokenizer's
// vocabulary is large). Empty when there is none.
std::string_view top_level_member(std::string_view json, std::string_view key);

}  // namespace glint
