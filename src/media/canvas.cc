#include "media/canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "base/integers.h"

namespace glint {
namespace {

constexpr int kMaxTokens = 1 << 20;

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

int align(int value, int factor) {
  return ceil_div(value, factor) * factor;
}

Status read_integer(const Json& config, const char* key, const std::string& file, int low, int high,
                    int& out) {
  const Json* value = config.find(key);
  if (value == nullptr || value->is_null()) return {};
  if (!value->is_int() || value->as_int() < low || value->as_int() > high) {
    return corrupt(
        fmt::format("{}: {} must be a whole number from {} to {}", file, key, low, high));
  }
  out = static_cast<int>(value->as_int());
  return {};
}

Status expect_integer(const Json& config, const char* key, const std::string& file, int expected) {
  int value = expected;
  GLINT_TRY_VOID(read_integer(config, key, file, 1, 1 << 16, value));
  if (value == expected) return {};
  return unsupported(
      fmt::format("{}: {} is {}, and this model's is {}", file, key, value, expected));
}

Status expect_on(const Json& config, const char* key, const std::string& file) {
  const Json* value = config.find(key);
  if (value == nullptr || value->is_null() || *value == Json(true)) return {};
  return unsupported(fmt::format("{}: {} is not true, which this version needs", file, key));
}

Status read_channels(const Json& config, const char* key, const std::string& file, double low,
                     std::array<float, 3>& out) {
  const Json* value = config.find(key);
  if (value == nullptr || value->is_null()) return {};
  const auto is_good = [low](const Json& number) {
    return number.is_number() && number.as_double() >= low && number.as_double() <= 1;
  };
  if (!value->is_array() || value->as_array().size() != out.size() ||
      !std::ranges::all_of(value->as_array(), is_good)) {
    return corrupt(fmt::format("{}: {} must be three numbers from {} to 1", file, key, low));
  }
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(value->as_array()[i].as_double());
  return {};
}

std::int64_t cells(const CanvasRules& rules, int width, int height) {
  return std::int64_t{width / rules.cell()} * (height / rules.cell());
}

// The largest content of the image's shape whose canvas keeps the limit.
void shrink(const CanvasRules& rules, int width, int height, CanvasSize& canvas) {
  canvas.width = canvas.height = rules.cell();
  int low = 1, high = height;
  while (low <= high) {
    const int content_height = low + (high - low) / 2;
    const auto content_width =
        std::max<std::int64_t>(1, std::int64_t{width} * content_height / height);
    const int aligned_height = align(content_height, rules.cell());
    const int aligned_width = align(static_cast<int>(content_width), rules.cell());
    if (cells(rules, aligned_width, aligned_height) <= rules.max_tokens) {
      canvas.height = aligned_height;
      canvas.width = aligned_width;
      low = content_height + 1;
    } else {
      high = content_height - 1;
    }
  }
}

}  // namespace

Result<CanvasRules> read_canvas_rules(const Json& config, const std::string& file,
                                      CanvasRules rules) {
  if (config.is_null()) return rules;
  GLINT_TRY_VOID(expect_integer(config, "patch_size", file, rules.patch_size));
  GLINT_TRY_VOID(expect_integer(config, "temporal_patch_size", file, rules.temporal_patch_size));
  GLINT_TRY_VOID(expect_integer(config, "merge_size", file, rules.merge));
  GLINT_TRY_VOID(expect_integer(config, "patch_expand_factor", file, 1));
  GLINT_TRY_VOID(expect_integer(config, "resample", file, 3));  // Pillow's number of bicubic
  for (const char* key : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"})
    GLINT_TRY_VOID(expect_on(config, key, file));
  GLINT_TRY_VOID(read_integer(config, "max_image_tokens", file, 1, kMaxTokens, rules.max_tokens));
  GLINT_TRY_VOID(
      read_integer(config, "min_image_tokens", file, 1, rules.max_tokens, rules.min_tokens));
  GLINT_TRY_VOID(read_channels(config, "image_mean", file, 0, rules.mean));
  GLINT_TRY_VOID(read_channels(config, "image_std", file, 1e-3, rules.std));
  const Json* factor = config.find("rescale_factor");
  if (factor != nullptr && !factor->is_null() &&
      !(factor->is_number() && std::fabs(factor->as_double() * 255 - 1) < 1e-6)) {
    return unsupported(file + ": rescale_factor is not 1/255, which this version needs");
  }
  return rules;
}

// image_processing_glm5_next.py: smart_resize() and resize().
CanvasSize canvas_size(const CanvasRules& rules, int width, int height) {
  const int cell = rules.cell();
  const double area = static_cast<double>(width) * height;
  const double least = static_cast<double>(rules.min_tokens) * cell * cell;
  CanvasSize canvas{.width = align(width, cell), .height = align(height, cell)};
  if (cells(rules, canvas.width, canvas.height) < rules.min_tokens) {
    const double scale = std::sqrt(least / area);
    canvas.height = align(std::max(1, static_cast<int>(std::ceil(height * scale))), cell);
    canvas.width = align(std::max(1, static_cast<int>(std::ceil(width * scale))), cell);
  }
  if (cells(rules, canvas.width, canvas.height) > rules.max_tokens)
    shrink(rules, width, height, canvas);
  double scale = std::min(static_cast<double>(canvas.height) / height,
                          static_cast<double>(canvas.width) / width);
  if (area >= least) scale = std::min(1.0, scale);
  const auto content = [scale](int side, int most) {
    return std::clamp(static_cast<int>(std::floor(side * scale)), 1, most);
  };
  canvas.content_height = content(height, canvas.height);
  canvas.content_width = content(width, canvas.width);
  return canvas;
}

Image make_canvas(const CanvasRules& rules, const Image& image) {
  const CanvasSize place = canvas_size(rules, image.width, image.height);
  const Image content = resize_bicubic(image, place.content_width, place.content_height);
  Image canvas{place.width, place.height, {}};
  canvas.rgb.resize(canvas.row_bytes() * size(canvas.height));
  for (int y = 0; y < content.height; ++y) {
    std::copy_n(content.rgb.data() + size(y) * content.row_bytes(), content.row_bytes(),
                canvas.rgb.data() + size(y) * canvas.row_bytes());
  }
  return canvas;
}

std::vector<float> make_patches(const CanvasRules& rules, const Image& canvas) {
  const int patch = rules.patch_size, merge = rules.merge, cell = rules.cell();
  GLINT_CHECK(canvas.width % cell == 0 && canvas.height % cell == 0);
  std::array<std::array<float, 256>, 3> normalised;
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t value = 0; value < 256; ++value) {
      normalised[c][value] =
          (static_cast<float>(value) - rules.mean[c] * 255.0f) / (rules.std[c] * 255.0f);
    }
  }
  std::vector<float> out;
  out.reserve(canvas.rgb.size() * size(rules.temporal_patch_size));
  const auto add_patch = [&](int top, int left) {
    for (std::size_t c = 0; c < 3; ++c) {
      for (int t = 0; t < rules.temporal_patch_size; ++t) {
        for (int y = 0; y < patch; ++y) {
          const std::uint8_t* row =
              canvas.rgb.data() + size(top + y) * canvas.row_bytes() + size(left) * 3 + c;
          for (int x = 0; x < patch; ++x) out.push_back(normalised[c][row[size(x) * 3]]);
        }
      }
    }
  };
  for (int top = 0; top < canvas.height; top += cell) {
    for (int left = 0; left < canvas.width; left += cell) {
      for (int i = 0; i < merge * merge; ++i)
        add_patch(top + i / merge * patch, left + i % merge * patch);
    }
  }
  return out;
}

}  // namespace glint
