#include "models/cache_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace glint {
namespace {

constexpr CacheFormat kFormats[] = {CacheFormat::kBf16, CacheFormat::kFp8, CacheFormat::kFp4};

}  // namespace

std::string_view cache_format_name(CacheFormat format) {
  return row_format_name(row_format(format, Compute::kBf16));
}

std::optional<CacheFormat> cache_format_from_name(std::string_view name) {
  for (const CacheFormat format : kFormats) {
    if (name == cache_format_name(format)) return format;
  }
  return std::nullopt;
}

RowFormat row_format(CacheFormat format, Compute compute) {
  switch (format) {
    case CacheFormat::kFp8:
      return RowFormat::kFp8;
    case CacheFormat::kFp4:
      return RowFormat::kFp4;
    case CacheFormat::kBf16:
      break;
  }
  return compute == Compute::kF32 ? RowFormat::kF32 : RowFormat::kBf16;
}

CacheSpecs cache_specs(const std::string& name, int num_layers, const TokenRows& rows) {
  const auto spec = [&](RowFormat format) {
    return CacheSpec{name, num_layers,
                     static_cast<std::size_t>(rows.count) * row_bytes(format, rows.width)};
  };
  return {spec(RowFormat::kBf16), spec(RowFormat::kFp8), spec(RowFormat::kFp4)};
}

Status check_cache_format(const ModelInfo& info, CacheFormat format) {
  if (info.cache.find(format) != nullptr) return {};
  std::vector<std::string_view> names;
  for (const CacheFormat other : kFormats) {
    if (info.cache.find(other) != nullptr) names.push_back(cache_format_name(other));
  }
  return unsupported(fmt::format("{} keeps no cache of format {}, only {} (--kv-cache)",
                                 info.family, cache_format_name(format), fmt::join(names, ", ")));
}

}  // namespace glint
