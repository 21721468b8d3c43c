// Images of a conversation: from the content parts that hold them to what stands for them in a
// prompt.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/request.h"
#include "media/canvas.h"

namespace glint {

// A part of a message that is an image, as the client sent it.
struct ImagePart {
  std::string path;  // "messages[0].content[1]"
  std::string url;
};

// How a model takes images, and how many of one request.
struct ImageRules {
  CanvasRules canvas;
  std::int32_t image_token = -1;
  int max_images = 0;
};

// Whether a part is an image, by its type.
bool is_image_part(const Json& part);
// Errors: kInvalidArgument, naming the field.
Result<ImagePart> read_image_part(const Json& part, const std::string& path);

// A part that holds the image of a file. Errors: those of reading it; what is in it is not looked
// at.
Result<Json> image_file_part(const std::string& file);

// The bytes that a data: URL holds. Nothing is ever fetched. Errors: kInvalidArgument, kUnsupported
// for http(s), file and other URLs.
Result<std::string> read_data_url(std::string_view url);

// Decodes and scales the images, and puts them in the order of the prompt in place of its
// placeholders, of which there must be as many; each then stands as often as its image has tokens.
// Errors: kInvalidArgument, kUnsupported, naming the part.
Result<std::vector<PromptImage>> place_images(const ImageRules& rules,
                                              const std::vector<ImagePart>& parts,
                                              std::vector<std::int32_t>& ids);

}  // namespace glint
