#include "block_samples.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

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
  for (int i = 0; i < kNumGgmlTypes; ++i) {
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

std::vector<BlockSamples> int_block_samples() {
  struct Layout {
    DType type;
    DType scale;
    std::size_t zero_at;  // 0: the zero is fixed
    int fixed_zero;
    std::size_t codes_at;
    int code_bits;
  };
  constexpr Layout kLayouts[] = {
      {DType::kInt4B, DType::kBf16, 0, 8, 2, 4},  {DType::kInt4F, DType::kF32, 0, 8, 4, 4},
      {DType::kUint4B, DType::kBf16, 2, 0, 4, 4}, {DType::kUint4H, DType::kF16, 2, 0, 4, 4},
      {DType::kUint4F, DType::kF32, 4, 0, 8, 4},  {DType::kInt8B, DType::kBf16, 0, 128, 2, 8},
      {DType::kInt8F, DType::kF32, 0, 128, 4, 8}, {DType::kUint8F, DType::kF32, 4, 0, 8, 8}};
  std::mt19937 random(5);
  std::vector<BlockSamples> samples;
  for (const Layout& layout : kLayouts) {
    BlockSamples one;
    one.type = layout.type;
    one.count = 64;
    const std::size_t bytes = block_size(layout.type).bytes;
    one.raw.resize(one.count * bytes);
    for (std::byte& byte : one.raw) byte = static_cast<std::byte>(random());
    for (std::size_t b = 0; b < one.count; ++b) {
      std::byte* block = one.raw.data() + b * bytes;
      const float d = (static_cast<float>(random() % 4001) - 2000) * 0x1p-13f;
      double scale = static_cast<double>(d);
      if (layout.scale == DType::kF32) {
        std::memcpy(block, &d, 4);
      } else {
        const bool is_bf16 = layout.scale == DType::kBf16;
        const std::uint16_t bits = is_bf16 ? bf16::from_float(d).bits : f16_from_float(d);
        scale = static_cast<double>(is_bf16 ? bf16{bits}.to_float() : f16_to_float(bits));
        std::memcpy(block, &bits, 2);
      }
      const int zero =
          layout.zero_at == 0 ? layout.fixed_zero : std::to_integer<int>(block[layout.zero_at]);
      for (std::size_t i = 0; i < 32; ++i) {
        const std::byte* qs = block + layout.codes_at;
        const int code = layout.code_bits == 8
                             ? std::to_integer<int>(qs[i])
                             : std::to_integer<int>(qs[i / 2]) >> (i % 2 * 4) & 15;
        one.values.push_back(static_cast<float>(scale * (code - zero)));
      }
    }
    samples.push_back(std::move(one));
  }
  GLINT_CHECK(samples.size() == kNumBlockTypes - kNumGgmlTypes);
  return samples;
}

std::vector<BlockSamples> all_block_samples() {
  std::vector<BlockSamples> samples = load_block_samples();
  for (BlockSamples& one : int_block_samples()) samples.push_back(std::move(one));
  return samples;
}

}  // namespace glint
