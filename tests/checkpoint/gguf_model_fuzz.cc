// GGUF files of any content translated: nothing but an error or a model whose tensors lie in the
// file.
#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "checkpoint/gguf_model.h"

namespace {

using namespace glint;

std::filesystem::path scratch_file() {
  return std::filesystem::temp_directory_path() / fmt::format("glint-fuzz-{}.gguf", ::getpid());
}

void check_tensor(const TensorRef& tensor) {
  const auto file = tensor.file->bytes();
  GLINT_CHECK(tensor.bytes.data() >= file.data() &&
              tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size());
  const BlockSize block = block_size(tensor.dtype);
  std::uint64_t elements = 1;
  for (const std::int64_t size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
  GLINT_CHECK(tensor.bytes.size() == elements / block.elements * block.bytes);
}

void translate(const std::filesystem::path& path) {
  const auto file = GgufFile::open(path);
  if (!file) return;
  const auto model = translate_gguf(**file);
  if (!model) {
    GLINT_CHECK(!model.error().message.empty() && model.error().message.size() < 4000);
    return;
  }
  GLINT_CHECK(model->config.is_object() && model->generation_config.is_object());
  for (const TensorRef& tensor : model->tensors) check_tensor(tensor);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::filesystem::path path = scratch_file();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  translate(path);
  std::filesystem::remove(path);
  return 0;
}
