#include "chat/images.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/base64.h"
#include "base/file.h"
#include "engine/engine.h"

namespace glint {
namespace {

// Of all the images of a request: what they look like is kept until the request ends.
constexpr int kMaxTokens = 1 << 17;

const std::string* string_of(const Json* value) {
  return value != nullptr && value->is_string() ? &value->as_string() : nullptr;
}

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

Error at(const std::string& path, const Error& error) {
  // A file that contradicts its format is the client's mistake here.
  const bool is_clients = error.code == ErrorCode::kCorrupt;
  return {is_clients ? ErrorCode::kInvalidArgument : error.code, path + ": " + error.message};
}

Result<std::shared_ptr<const Image>> read_canvas(const CanvasRules& rules, const ImagePart& part) {
  const auto bytes = read_data_url(part.url);
  if (!bytes) return at(part.path, bytes.error());
  const auto image = decode_image(*bytes);
  if (!image) return at(part.path, image.error());
  return std::make_shared<const Image>(make_canvas(rules, *image));
}

ImagePatches patches_of(const CanvasRules& rules, const Image& canvas) {
  return {.height = canvas.height / rules.patch_size,
          .width = canvas.width / rules.patch_size,
          .merge = rules.merge,
          .values = make_patches(rules, canvas)};
}

}  // namespace

bool is_image_part(const Json& part) {
  const std::string* type = string_of(part.find("type"));
  return type != nullptr && (*type == "image_url" || *type == "input_image" || *type == "image");
}

// {"type": "image_url", "image_url": {"url": ...} or a string}, which all the types have in common.
Result<ImagePart> read_image_part(const Json& part, const std::string& path) {
  const Json* holder = part.find("image_url");
  const std::string* url = string_of(holder);
  if (url == nullptr && holder != nullptr && holder->is_object())
    url = string_of(holder->find("url"));
  if (url != nullptr) return ImagePart{path, *url};
  if (part.find("file_id") != nullptr) {
    return unsupported(path +
                       ".file_id: this server keeps no files; send the image itself as a "
                       "data: URL");
  }
  return invalid_argument(path + ".image_url: must be a data: URL, or an object whose url is one");
}

Result<Json> image_file_part(const std::string& file) {
  GLINT_TRY(const std::string bytes, read_text_file(file, kMaxImageBytes));
  Json url(Json::Object{{"url", Json("data:;base64," + base64_encode(bytes))}});
  return Json(Json::Object{{"type", Json("image_url")}, {"image_url", std::move(url)}});
}

Result<std::string> read_data_url(std::string_view url) {
  constexpr std::string_view kScheme = "data:", kEncoding = ";base64";
  if (!url.starts_with(kScheme)) {
    return unsupported(
        "this server fetches nothing, neither from the network nor from its disk; send the image "
        "itself as a data: URL (data:image/png;base64,...)");
  }
  const std::size_t comma = url.find(',');
  if (comma == std::string_view::npos || !url.substr(0, comma).ends_with(kEncoding)) {
    return invalid_argument("a data: URL must begin with data:image/TYPE;base64,");
  }
  const std::string_view media = url.substr(kScheme.size(), comma - kScheme.size());
  if (!media.starts_with("image/") && !media.starts_with(";")) {
    return unsupported("the data: URL does not hold an image, by its media type");
  }
  std::string text(url.substr(comma + 1));
  std::erase_if(text, is_blank);
  while (text.size() % 4 != 0 && text.size() % 4 != 1) text += '=';  // some leave it out
  auto bytes = base64_decode(text);
  if (!bytes) return invalid_argument("the data: URL holds no valid base64");
  return std::move(*bytes);
}

Result<std::vector<PromptImage>> place_images(const ImageRules& rules,
                                              const std::vector<ImagePart>& parts,
                                              std::vector<std::int32_t>& ids) {
  if (parts.size() > static_cast<std::size_t>(rules.max_images)) {
    return invalid_argument(fmt::format("{}: at most {} images are taken in one request, not {}",
                                        parts[static_cast<std::size_t>(rules.max_images)].path,
                                        rules.max_images, parts.size()));
  }
  const auto places = static_cast<std::size_t>(std::ranges::count(ids, rules.image_token));
  if (places != parts.size()) {
    return unsupported(fmt::format(
        "messages: the chat template makes {} places for {} images; use the model's own template, "
        "and leave images out of messages that it shows without them",
        places, parts.size()));
  }
  std::vector<PromptImage> images;
  std::vector<std::int32_t> placed;
  std::int64_t total = 0;
  for (const std::int32_t id : ids) {
    if (id != rules.image_token) {
      placed.push_back(id);
      continue;
    }
    const ImagePart& part = parts[images.size()];
    GLINT_TRY(const std::shared_ptr<const Image> canvas, read_canvas(rules.canvas, part));
    const int cell = rules.canvas.cell();
    const int count = canvas->width / cell * (canvas->height / cell);
    total += count;
    if (total > kMaxTokens) {
      return invalid_argument(
          fmt::format("{}: the images have more than {} tokens in all; send fewer, or smaller ones",
                      part.path, kMaxTokens));
    }
    images.push_back(
        {.first = static_cast<int>(placed.size()),
         .count = count,
         .content = content_hash(*canvas),
         .patches = [canvas, rules = rules.canvas] { return patches_of(rules, *canvas); }});
    placed.insert(placed.end(), static_cast<std::size_t>(count), rules.image_token);
  }
  ids = std::move(placed);
  return images;
}

}  // namespace glint
