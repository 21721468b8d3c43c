// The formats of the cache: their names, and what a model of plain rows stores in each.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "models/model.h"
#include "tensor/row_format.h"

namespace glint {

std::string_view cache_format_name(CacheFormat format);  // "bf16", "fp8", "fp4"
// Such a name; nullopt: none.
std::optional<CacheFormat> cache_format_from_name(std::string_view name);
RowFormat row_format(CacheFormat format, Compute compute);
// How many times the bytes of ModelInfo::cache rows take: 2 where float32 replaces bf16.
inline std::size_t row_factor(CacheFormat format, Compute compute) {
  return row_format(format, compute) == RowFormat::kF32 ? sizeof(float) / sizeof(bf16) : 1;
}

// What a layer keeps of a token: `count` rows of `width` values.
struct TokenRows {
  int width = 0;
  int count = 1;
};
CacheSpecs cache_specs(const std::string& name, int num_layers, const TokenRows& rows);

// Calls function(CacheFormat, CacheSpec&) for each that there is.
template <typename Function>
void for_each_format(CacheSpecs& specs, const Function& function) {
  function(CacheFormat::kBf16, specs.bf16);
  if (specs.fp8) function(CacheFormat::kFp8, *specs.fp8);
  if (specs.fp4) function(CacheFormat::kFp4, *specs.fp4);
}

// kUnsupported, which names the formats that the model has.
Status check_cache_format(const ModelInfo& info, CacheFormat format);

}  // namespace glint
