// The images of one sequence: what the cache knows their positions by, and the rows that stand
// there in a step. The vision tower runs on the engine thread, before the first step that needs one
// of its rows: not at all for an image whose positions the prefix cache holds.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "models/model.h"

namespace glint {

// Errors: kInvalidArgument unless they lie in the prompt, ascending and apart.
Status check_images(std::span<const PromptImage> images, std::size_t prompt_len);

class SequenceImages {
 public:
  SequenceImages() = default;
  explicit SequenceImages(std::vector<PromptImage> images);

  bool empty() const { return places_.empty(); }
  // Puts into `tokens`, which are those from position `start` on, what the cache is to know the
  // positions of images by: numbers that are no token, and equal for equal images only, so that
  // nobody starts from the rows of another image.
  void rename(int start, std::span<std::int32_t> tokens) const;
  // Runs the tower for images of positions [start, end) that it did not run for yet.
  void encode(const Model& model, Exec& exec, int start, int end);
  // The rows of positions [start, end), which were encoded; position `start` is row `begin`.
  void add_rows(int start, int end, int begin, std::vector<InputRows>& rows) const;
  // Gives back the memory of those before position `end`. encode() brings them back.
  void forget(int end);

 private:
  struct Place {
    PromptImage image;
    std::size_t width = 0;              // of a row
    std::unique_ptr<float[]> features;  // [count, width]; null: not encoded
  };
  std::vector<Place> places_;  // ascending
};

}  // namespace glint
