#include <fmt/format.h>

#include <mutex>

#include "media/image.h"
#include "textcore.h"

namespace glint {
namespace {

struct Bytes {
  TcBytes value{};
  Bytes() = default;
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { tc_bytes_free(value); }
};

}  // namespace

Result<Image> decode_image(std::string_view bytes) {
  if (bytes.size() > kMaxImageBytes) {
    return invalid_argument(fmt::format("the image has {} bytes, and at most {} are read",
                                        bytes.size(), kMaxImageBytes));
  }
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::uint32_t width = 0, height = 0;
  Bytes rgb, message;
  const std::int32_t status =
      tc_image_decode(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(),
                      kMaxImagePixels, &width, &height, &rgb.value, &message.value);
  if (status == TC_OK) {
    return Image{static_cast<int>(width),
                 static_cast<int>(height),
                 {rgb.value.data, rgb.value.data + rgb.value.len}};
  }
  std::string text(reinterpret_cast<const char*>(message.value.data), message.value.len);
  if (status == TC_INVALID) return invalid_argument(std::move(text));
  if (status == TC_CORRUPT) return corrupt(std::move(text));
  if (status == TC_UNSUPPORTED) return unsupported(std::move(text));
  return internal_error(std::move(text));
}

std::uint64_t content_hash(const Image& image) {
  const std::uint64_t sizes =
      static_cast<std::uint64_t>(image.width) << 32 | static_cast<std::uint32_t>(image.height);
  const std::uint64_t parts[] = {sizes, tc_keyed_hash(image.rgb.data(), image.rgb.size())};
  return tc_keyed_hash(reinterpret_cast<const std::uint8_t*>(parts), sizeof parts);
}

}  // namespace glint
