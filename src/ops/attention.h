// Causal attention of a step's queries over paged keys and values. Keys are cut into spans of
// kAttendSpan by absolute position and partial results are merged in that order, so a query's
// result depends on its own keys only.
#pragma once

#include <cstdint>
#include <span>

#include "ops/matmul.h"

namespace glint {

// Where the keys and values of one kv head of one sequence are, page by page (kAttendPage keys
// each).
struct KeyValuePages {
  std::span<const std::byte* const> k_pages;
  std::size_t k_stride = 0;  // bytes between keys
  std::span<const std::byte* const> v_pages;
  std::size_t v_stride = 0;
};

// `rows_per_query` query rows (heads) share the keys of each query position.
struct AttentionJob {
  const void* q = nullptr;       // [num_queries, rows_per_query, dk]; element type of the cache
  std::size_t q_row_stride = 0;  // elements between heads
  std::size_t q_stride = 0;      // elements between queries
  int num_queries = 0;
  int rows_per_query = 0;
  int start = 0;      // position of query 0: it sees keys [first_key, start]
  int first_key = 0;  // at most start; what lies before it may hold anything
  KeyValuePages kv;
  int dk = 0, dv = 0;
  float scale = 0;
  float* out = nullptr;  // [num_queries, rows_per_query, dv], divided by the sums
  std::size_t out_row_stride = 0;
  std::size_t out_stride = 0;
};

// All jobs in few parallel regions. `kernels` matches the element type. All jobs have the same dk
// and dv.
void attend(Exec& exec, const AttendKernels& kernels, std::size_t element_bytes,
            std::span<const AttentionJob> jobs);

}  // namespace glint
