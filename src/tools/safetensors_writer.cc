#include "tools/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/json.h"

namespace glint {
namespace {

constexpr std::uint64_t kHeaderAlignment = 8;

Error system_error(const std::filesystem::path& path, std::string_view what) {
  return io_error(fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

}  // namespace

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::filesystem::path& path, const std::vector<Tensor>& tensors) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  Json::Object header;
  std::uint64_t at = 0;
  for (const Tensor& tensor : tensors) {
    std::uint64_t nbytes = dtype_bytes(tensor.dtype);
    Json shape(Json::Array{});
    for (const std::int64_t dim : tensor.shape) {
      GLINT_CHECK(dim >= 0);
      nbytes *= static_cast<std::uint64_t>(dim);
      shape.push_back(dim);
    }
    if (!writer->ranges_.emplace(tensor.name, Range{at, at + nbytes}).second) {
      return invalid_argument(
          fmt::format("{}: two tensors are named {}", path.string(), tensor.name));
    }
    Json offsets(Json::Array{at, at + nbytes});
    Json entry;
    entry.set("dtype", dtype_name(tensor.dtype));
    entry.set("shape", std::move(shape));
    entry.set("data_offsets", std::move(offsets));
    header.emplace_back(tensor.name, std::move(entry));
    at += nbytes;
  }
  std::string text = Json(std::move(header)).dump();
  while (text.size() % kHeaderAlignment != 0) text += ' ';
  const std::uint64_t length = text.size();
  const std::uint64_t start = sizeof length + length;
  for (auto& [name, range] : writer->ranges_) range = {range.begin + start, range.end + start};
  writer->size_ = start + at;
  writer->path_ = path;

  std::string temporary = path.string() + ".XXXXXX";
  writer->file_ = mkstemp(temporary.data());
  if (writer->file_ < 0) return system_error(path, "cannot be written");
  writer->temporary_ = temporary;
  GLINT_TRY_VOID(writer->write_at(0, std::as_bytes(std::span(&length, 1))));
  GLINT_TRY_VOID(writer->write_at(sizeof length, std::as_bytes(std::span(text))));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ >= 0) close(file_);
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove(temporary_, ignored);
}

Status SafetensorsWriter::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return system_error(path_, "cannot be written");
    offset += static_cast<std::uint64_t>(done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return {};
}

Status SafetensorsWriter::write(const std::string& name, std::uint64_t offset,
                                std::span<const std::byte> bytes) {
  const auto found = ranges_.find(name);
  GLINT_CHECK(found != ranges_.end());
  const Range range = found->second;
  GLINT_CHECK(offset <= range.end - range.begin &&
              bytes.size() <= range.end - range.begin - offset);
  return write_at(range.begin + offset, bytes);
}

Status SafetensorsWriter::finish() {
  const mode_t mask = umask(0);
  umask(mask);
  if (ftruncate(file_, static_cast<off_t>(size_)) != 0)
    return system_error(path_, "cannot be written");
  if (fchmod(file_, 0666 & ~mask) != 0) return system_error(path_, "cannot be written");
  if (close(std::exchange(file_, -1)) != 0) return system_error(path_, "cannot be written");
  std::error_code failed;
  std::filesystem::rename(temporary_, path_, failed);
  if (failed) return io_error(fmt::format("{}: {}", path_.string(), failed.message()));
  temporary_.clear();
  return {};
}

}  // namespace glint
