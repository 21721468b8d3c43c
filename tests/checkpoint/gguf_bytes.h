// Builds the bytes of GGUF files, right or wrong, for the tests of this folder.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace glint {

template <typename T>
std::string little_endian(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

inline std::string gguf_string(std::string_view text) {
  return little_endian<std::uint64_t>(text.size()) + std::string(text);
}

// The format's numbers of value types.
enum GgufType : std::uint32_t {
  kGgufUint8 = 0,
  kGgufUint16 = 2,
  kGgufInt32 = 5,
  kGgufUint32 = 4,
  kGgufFloat32 = 6,
  kGgufBool = 7,
  kGgufString = 8,
  kGgufArray = 9,
  kGgufUint64 = 10
};
constexpr std::uint32_t kGgmlF32 = 0, kGgmlF16 = 1, kGgmlQ4_0 = 2;

// Adds keys and tensors, then writes them; everything that a test wants wrong can be said.
class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dims;  // fastest first, as in the file
    std::uint32_t type = kGgmlF32;
    std::uint64_t offset = 0;
  };

  // A value whose bytes the test gives.
  GgufWriter& raw(std::string_view key, std::uint32_t type, std::string_view value) {
    keys_ += gguf_string(key) + little_endian(type) + std::string(value);
    ++num_keys;
    return *this;
  }
  GgufWriter& u32(std::string_view key, std::uint32_t value) {
    return raw(key, kGgufUint32, little_endian(value));
  }
  GgufWriter& u16(std::string_view key, std::uint16_t value) {
    return raw(key, kGgufUint16, little_endian(value));
  }
  GgufWriter& f32(std::string_view key, float value) {
    return raw(key, kGgufFloat32, little_endian(value));
  }
  GgufWriter& boolean(std::string_view key, bool value) {
    return raw(key, kGgufBool, std::string(1, value ? '\1' : '\0'));
  }
  GgufWriter& text(std::string_view key, std::string_view value) {
    return raw(key, kGgufString, gguf_string(value));
  }
  GgufWriter& array(std::string_view key, std::uint32_t type, std::uint64_t count,
                    std::string_view elements) {
    return raw(key, kGgufArray, little_endian(type) + little_endian(count) + std::string(elements));
  }
  GgufWriter& texts(std::string_view key, const std::vector<std::string>& values) {
    std::string elements;
    for (const std::string& value : values) elements += gguf_string(value);
    return array(key, kGgufString, values.size(), elements);
  }
  // A float32 tensor behind those before it, its bytes 0, 1, 2, ...
  GgufWriter& tensor(std::string_view name, std::vector<std::uint64_t> dims) {
    std::uint64_t nbytes = sizeof(float);
    for (const std::uint64_t size : dims) nbytes *= size;
    tensors.push_back({std::string(name), std::move(dims), kGgmlF32, data_bytes});
    data_bytes += (nbytes + 31) / 32 * 32;
    return *this;
  }

  std::string header() const {
    std::string out = magic + little_endian(version) +
                      little_endian<std::uint64_t>(num_tensors ? num_tensors : tensors.size()) +
                      little_endian<std::uint64_t>(num_keys) + keys_;
    for (const Tensor& tensor : tensors) {
      out +=
          gguf_string(tensor.name) + little_endian(static_cast<std::uint32_t>(tensor.dims.size()));
      for (const std::uint64_t size : tensor.dims) out += little_endian(size);
      out += little_endian(tensor.type) + little_endian(tensor.offset);
    }
    return out;
  }
  std::string file() const {
    std::string out = header();
    out.resize((out.size() + 31) / 32 * 32);
    for (std::uint64_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i & 0xff);
    return out;
  }

  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t num_keys = 0;
  std::uint64_t num_tensors = 0;  // 0: as many as there are
  std::vector<Tensor> tensors;
  std::uint64_t data_bytes = 0;

 private:
  std::string keys_;
};

}  // namespace glint
