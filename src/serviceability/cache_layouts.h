// How many bytes a token keeps in the cache formats that engines have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace glint {

// Rows of one kind that are kept, one per `tokens_per_row` tokens and layer.
struct CachePart {
  enum class Kind {
    kLatent,  // a latent, and the rope key behind it
    kHeads,   // keys and values of heads
    kIndex    // keys of an indexer
  };
  Kind kind = Kind::kHeads;
  std::string name;  // "latent and rope key", "pooled index keys", ...
  std::int64_t layers = 0;
  std::int64_t width = 0;  // values of a vector
  std::int64_t tokens_per_row = 1;
  std::int64_t vectors = 1;  // of a row, each with scales of its own
  std::int64_t values() const { return vectors * width; }
};

struct CacheLayout {
  std::string name;            // "bf16", "fp8", "flashmla-656", ...
  std::string layout;          // of a row, for people
  double row_bytes = 0;        // of the first part
  double bytes_per_token = 0;  // whole unless rows are shared by tokens
  double with_mtp = 0;         // the draft layer's rows too
};

// bf16, fp8 and fp4 as tensor/row_format.h has them (of 512 values FlashMLA's 528 and 288 bytes).
// Index keys have no fp4; their fp8 is e4m3 and one float32 scale (132 bytes of 128). The rest, by
// name, are those of one kernel, for rows it fits.
std::vector<CacheLayout> cache_layouts(const std::vector<CachePart>& parts,
                                       const std::vector<CachePart>& mtp, std::int64_t rope_width);

}  // namespace glint
