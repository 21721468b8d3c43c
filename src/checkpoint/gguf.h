// GGUF version 3 (github.com/ggml-org/ggml, docs/gguf.md): typed metadata and tensors of one file
// or of a set of shards, memory-mapped. Everything is validated before use: counts, lengths, types,
// alignment, offsets, overlap. Names stay as the file has them (checkpoint/gguf_model.h
// translates).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace glint {

// Strings borrow the mapping. Integers of any width are std::int64_t, except what exceeds it.
using GgufScalar = std::variant<std::int64_t, std::uint64_t, double, bool, std::string_view>;
struct GgufValue {
  std::variant<GgufScalar, std::vector<std::int64_t>, std::vector<double>, std::vector<bool>,
               std::vector<std::string_view>>
      value;
};

class GgufFile {
 public:
  // `path` is a file, or any shard NAME-00001-of-0000N.gguf of a set whose shards lie beside it
  // (all must be there; missing ones are listed). Errors: kNotFound, kCorrupt (naming the file and
  // the key or tensor), kUnsupported (version, tensor type, endianness).
  static Result<std::shared_ptr<const GgufFile>> open(const std::filesystem::path& path);
  // Parses a header from memory (what the fuzz target drives); tensors' data must lie inside
  // `file_size` bytes.
  struct Header {
    std::map<std::string, GgufValue, std::less<>> metadata;
    struct Tensor {
      std::string name;
      DType dtype;
      std::vector<std::int64_t> shape;  // slowest dimension first, as everywhere in glint
      std::uint64_t begin, end;         // bytes from the start of the file
    };
    std::vector<Tensor> tensors;
  };
  static Result<Header> parse(std::span<const std::byte> bytes, std::uint64_t file_size,
                              std::string_view file_name);

  const std::filesystem::path& path() const { return path_; }  // the first shard
  const std::vector<std::string>& files() const { return files_; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<TensorRef>& tensors() const { return tensors_; }

  const GgufValue* find(std::string_view key) const;  // nullptr when absent
  // nullopt: absent or of another type.
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // integers too
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;
  const std::vector<std::string_view>* strings(std::string_view key) const;
  const std::vector<std::int64_t>* integers(std::string_view key) const;
  const std::vector<double>* numbers(std::string_view key) const;

 private:
  std::filesystem::path path_;
  std::vector<std::string> files_;
  std::vector<std::shared_ptr<const MappedFile>> mappings_;  // what strings borrow
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<TensorRef> tensors_;
};

}  // namespace glint
