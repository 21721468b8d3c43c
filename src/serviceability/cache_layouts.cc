#include "serviceability/cache_layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "tensor/row_format.h"

namespace glint {
namespace {

using Bytes = std::function<std::optional<double>(const CachePart&)>;

std::optional<double> sum(const std::vector<CachePart>& parts, const Bytes& row_bytes) {
  double total = 0;
  for (const CachePart& part : parts) {
    const std::optional<double> bytes = row_bytes(part);
    if (!bytes) return std::nullopt;
    total += static_cast<double>(part.layers) * *bytes / static_cast<double>(part.tokens_per_row);
  }
  return total;
}

double number(std::int64_t value) {
  return static_cast<double>(value);
}

// An indexer's keys: e4m3 and one float32 scale.
double index_fp8(const CachePart& part) {
  return number(part.width) + 4;
}

std::optional<double> packed(const CachePart& part, RowFormat format) {
  if (part.kind == CachePart::Kind::kIndex) return index_fp8(part);
  const std::size_t vector = row_bytes(format, static_cast<int>(part.width));
  return static_cast<double>(vector) * number(part.vectors);
}

}  // namespace

std::vector<CacheLayout> cache_layouts(const std::vector<CachePart>& parts,
                                       const std::vector<CachePart>& mtp, std::int64_t rope_width) {
  std::vector<CacheLayout> layouts;
  if (parts.empty()) return layouts;
  const auto add = [&](std::string name, std::string layout, const Bytes& row_bytes) {
    const std::optional<double> first = row_bytes(parts.front());
    const std::optional<double> total = sum(parts, row_bytes), more = sum(mtp, row_bytes);
    if (first && total && more)
      layouts.push_back({std::move(name), std::move(layout), *first, *total, *total + *more});
  };
  const CachePart& first = parts.front();
  const bool index = std::ranges::any_of(
      parts, [](const CachePart& part) { return part.kind == CachePart::Kind::kIndex; });
  const std::string index_note = index ? "; index keys: e4m3 and a float32 scale" : "";
  add("bf16", fmt::format("{} bf16 values", first.values()),
      [](const CachePart& part) { return 2 * number(part.values()); });
  add("fp8", fmt::format("{} e4m3, a UE8M0 scale per 32{}", first.values(), index_note),
      [](const CachePart& part) { return packed(part, RowFormat::kFp8); });
  add("fp4", fmt::format("{} e2m1, an e4m3 scale per 16{}", first.values(), index_note),
      [](const CachePart& part) { return packed(part, RowFormat::kFp4); });

  // What one kernel stores: FlashMLA (README, 2026.09.30 and before), for rows of its widths.
  const auto latent_as = [](double bytes) -> Bytes {
    return [bytes](const CachePart& part) {
      return part.kind == CachePart::Kind::kIndex ? index_fp8(part) : bytes;
    };
  };
  if (first.kind != CachePart::Kind::kLatent) return layouts;
  if (first.width == 576 && rope_width == 64 && index) {
    add("flashmla-656", "FlashMLA of V3.2: 512 e4m3, 4 float32 scales, 64 bf16 rope values",
        latent_as(656));
  }
  if (first.width == 512 && rope_width == 64) {
    add("flashmla-584", "FlashMLA of V4.0: 448 e4m3, 64 bf16 rope values, 7 UE8M0 scales and a pad",
        latent_as(584));
  }
  if (first.width == 512) {
    add("flashmla-528", "FlashMLA 2026.09.30: 512 e4m3, 16 UE8M0 scales", latent_as(528));
    if (first.tokens_per_row > 1) {
      add("flashmla-288", "FlashMLA 2026.09.30: 512 e2m1, 32 e4m3 scales; compressed rows only",
          latent_as(288));
    }
  }
  return layouts;
}

}  // namespace glint
