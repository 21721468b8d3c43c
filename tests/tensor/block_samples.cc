#include "block_samples.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "base/json.h"

namespace glint {
namespace {

std::span<const char> tensor_bytes(const Json& header, std::span<const char> payload,
                                   const std::string& name) {
  const Json* entry = header.find(name);
  GLINT_CHECK(entry != nullptr);
  const Json::Array& offsets = entry->find("data_offsets")->as_array();
  const auto begin = static_cast<std::size_t>(offsets[0].as_int());
  const auto end = static_cast<std::size_t>(offsets[1].as_int());
  GLINT_CHECK(begin <= end && end <= payload.size());
  return payload.subspan(begin, end - begin);
}

template <typename T>
std::vector<T> copied(std::span<const char> bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

}  // namespace

std::vector<BlockSamples> load_block_samples() {
  std::ifstream file(GLINT_TEST_DATA "/gguf/types.safetensors", std::ios::binary);
  const std::vector<char> all((std::istreambuf_iterator<char>(file)), {});
  GLINT_CHECK(all.size() > 8);
  std::uint64_t header_bytes;
  std::memcpy(&header_bytes, all.data(), 8);
  GLINT_CHECK(header_bytes <= all.size() - 8);
  const auto header = parse_json(std::string_view(all.data() + 8, header_bytes));
  GLINT_CHECK(header.has_value());
  const auto payload = std::span(all).subspan(8 + header_bytes);

  std::vector<BlockSamples> samples;
  for (int i = 0; i < kNumBlockTypes; ++i) {
    BlockSamples one;
    one.type = static_cast<DType>(static_cast<int>(kFirstBlockType) + i);
    const std::string name(dtype_name(one.type));
    one.raw = copied<std::byte>(tensor_bytes(*header, payload, name + ".raw"));
    one.values = copied<float>(tensor_bytes(*header, payload, name + ".values"));
    const BlockSize size = block_size(one.type);
    one.count = one.raw.size() / size.bytes;
    GLINT_CHECK(one.count > 0 && one.raw.size() == one.count * size.bytes);
    GLINT_CHECK(one.values.size() == one.count * size.elements);
    samples.push_back(std::move(one));
  }
  return samples;
}

}  // namespace glint
