// Writes a safetensors file whose tensors are known by name and shape first and filled in any order
// after, so that no tensor needs to be held whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace glint {

class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<std::int64_t> shape;
  };

  // Opens a temporary sibling of `path`. Errors: kIo, kInvalidArgument (a name twice).
  static Result<std::unique_ptr<SafetensorsWriter>> create(const std::filesystem::path& path,
                                                           const std::vector<Tensor>& tensors);
  // Removes what was written unless finish() succeeded.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Bytes of tensor `name` from byte `offset` on; the range must lie inside it.
  Status write(const std::string& name, std::uint64_t offset, std::span<const std::byte> bytes);
  // Everything not written is zero. Renames the file into place.
  Status finish();

 private:
  struct Range {
    std::uint64_t begin, end;
  };
  SafetensorsWriter() = default;
  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int file_ = -1;
  std::map<std::string, Range> ranges_;  // from the start of the file
  std::uint64_t size_ = 0;
};

}  // namespace glint
