// Causal attention of a step's queries over paged keys and values. Keys are cut into spans of
// kAttendSpan by absolute position and partial results are merged in that order, so a query's
// result depends on its own keys only. The same for queries that see chosen keys. Packed rows
// (ops/cache_rows.h) are unpacked a span at a time, into the scratch memory of who multiplies them.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cache_rows.h"
#include "ops/matmul.h"

namespace glint {

// Where the keys and values of one kv head of one sequence are, page by page (kAttendPage keys
// each). Values on the pages of the keys are their first elements.
struct KeyValuePages {
  std::span<const std::byte* const> k_pages;
  std::size_t k_stride = 0;  // bytes between keys
  std::span<const std::byte* const> v_pages;
  std::size_t v_stride = 0;
};

// `rows_per_query` query rows (heads) share the keys of each query position.
struct AttentionJob {
  const void* q = nullptr;       // [num_queries, rows_per_query, dk]; elements of the cache's rows
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

// All jobs in few parallel regions. All of them have the same dk and dv.
void attend(Exec& exec, const CacheRows& rows, std::span<const AttentionJob> jobs);

// One query, whose rows (heads) see the keys at some positions only. Values are the first dv
// elements of keys.
struct SelectedJob {
  const void* q = nullptr;                  // [rows, dk], dense; elements of the cache's rows
  std::span<const std::int32_t> positions;  // ascending, not empty
  std::span<const std::byte* const> pages;  // kAttendPage keys each
  float* out = nullptr;                     // [rows, dv], dense, divided by the sums
};

// What all jobs of a call share.
struct SelectedShape {
  int rows = 0;
  int dk = 0, dv = 0;
  std::size_t k_stride = 0;  // bytes between keys
  float scale = 0;
};

// Keys are cut into spans of kAttendSpan in the order of a query's own positions.
void attend_selected(Exec& exec, const CacheRows& rows, const SelectedShape& shape,
                     std::span<const SelectedJob> jobs);

}  // namespace glint
