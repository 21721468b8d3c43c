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
  std::int64_t width = 0;  // values of a row
  std::int64_t tokens_per_row = 1;
};

struct CacheLayout {
  std::string name;            // "bf16", "fp8", "flashmla-656", ...
  std::string layout;          // of a row, for people
  double row_bytes = 0;        // of the first part
  double bytes_per_token = 0;  // whole unless rows are shared by tokens
  double with_mtp = 0;         // the draft layer's rows too
};

// Of a row, by the part's kind: bf16 two bytes a value. fp8: e4m3 and a UE8M0 scale per 32 values
// (FlashMLA's 528 bytes of 512). fp4: e2m1 and an e4m3 scale per 16 (its 288). Index keys have no
// fp4; their fp8 is e4m3 and one float32 scale (132 bytes of 128). Formats whose groups do not
// divide a row are left out. The rest, by name, are those of one kernel, for rows it fits.
std::vector<CacheLayout> cache_layouts(const std::vector<CachePart>& parts,
                                       const std::vector<CachePart>& mtp, std::int64_t rope_width);

}  // namespace glint
