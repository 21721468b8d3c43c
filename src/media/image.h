// Pictures on their way to a vision tower: the bytes of a file, pixels, the canvas that a model's
// processor makes of them (media/canvas.h). Knows no models and no requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace glint {

struct Image {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgb;  // [height, width, 3]

  std::size_t row_bytes() const { return static_cast<std::size_t>(width) * 3; }
};

// More pixels than cameras make; decoding takes up to 4 bytes for each, or 12 of a progressive
// JPEG.
inline constexpr std::uint64_t kMaxImagePixels = 50'000'000;
inline constexpr std::size_t kMaxImageBytes = 32u << 20;  // of a file

// A PNG, JPEG or WebP file: the first frame, upright as its EXIF data says, without alpha. Sizes
// are checked before anything of that size is allocated, and one image is decoded at a time,
// whatever the threads. Errors: kInvalidArgument (empty, too large), kUnsupported (another format),
// kCorrupt.
Result<Image> decode_image(std::string_view bytes);

// Under a key of this process: equal for equal images, and nobody can choose two that collide.
std::uint64_t content_hash(const Image& image);

// Bicubic, antialiased where it shrinks, rows before columns, rounded to 8 bits after each: the
// same bits as Pillow's resize(..., BICUBIC), but for one level here and there where newer Pillows
// do the columns first.
Image resize_bicubic(const Image& image, int width, int height);

}  // namespace glint
