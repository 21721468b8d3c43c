#include "engine/images.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace glint {
namespace {

constexpr std::uint32_t kNoToken = 0x80000000u;  // tokens are not negative

// 31 bits of the image and the place in it. `content` is a keyed hash already.
std::int32_t name_of(std::uint64_t content, int offset) {
  std::uint64_t h = content + 0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(offset) + 1);
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(h >> 32) | kNoToken);
}

}  // namespace

Status check_images(std::span<const PromptImage> images, std::size_t prompt_len) {
  std::size_t end = 0;
  for (const PromptImage& image : images) {
    const auto first = static_cast<std::size_t>(image.first);
    const auto count = static_cast<std::size_t>(image.count);
    if (image.first < 0 || image.count < 1 || first < end || first > prompt_len ||
        count > prompt_len - first) {
      return invalid_argument(
          fmt::format("an image of {} tokens at {} does not fit a prompt of {} behind the others",
                      image.count, image.first, prompt_len));
    }
    end = first + count;
  }
  return {};
}

SequenceImages::SequenceImages(std::vector<PromptImage> images) {
  for (PromptImage& image : images)
    places_.push_back({.image = std::move(image), .width = 0, .features = nullptr});
}

void SequenceImages::rename(int start, std::span<std::int32_t> tokens) const {
  const int end = start + static_cast<int>(tokens.size());
  for (const auto& [image, width, features] : places_) {
    const int last = std::min(end, image.first + image.count);
    for (int at = std::max(start, image.first); at < last; ++at)
      tokens[static_cast<std::size_t>(at - start)] = name_of(image.content, at - image.first);
  }
}

void SequenceImages::encode(const Model& model, Exec& exec, int start, int end) {
  for (auto& [image, width, features] : places_) {
    if (features != nullptr || image.first >= end || image.first + image.count <= start) continue;
    const ImagePatches patches = image.patches();
    GLINT_CHECK(patches.tokens() == image.count);
    width = static_cast<std::size_t>(model.info().hidden_size);
    const std::size_t values = static_cast<std::size_t>(image.count) * width;
    features = std::make_unique_for_overwrite<float[]>(values);
    model.encode_image(exec, patches, {features.get(), values});
  }
}

void SequenceImages::add_rows(int start, int end, int begin, std::vector<InputRows>& rows) const {
  for (const auto& [image, width, features] : places_) {
    const int first = std::max(start, image.first);
    const int last = std::min(end, image.first + image.count);
    if (first >= last) continue;
    GLINT_CHECK(features != nullptr);
    rows.push_back(
        {.begin = begin + first - start,
         .count = last - first,
         .values = features.get() + static_cast<std::size_t>(first - image.first) * width});
  }
}

void SequenceImages::forget(int end) {
  for (auto& [image, width, features] : places_) {
    if (image.first + image.count <= end) features.reset();
  }
}

}  // namespace glint
