// Memory of machines with several nodes, by system call: glint needs no libnuma.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace glint {

// How many nodes this process may take memory from. kUnsupported where the kernel has no NUMA
// support, or keeps the process from it.
Result<int> numa_nodes();
// Lets the pages of [data, data + nbytes) come from all those nodes in turn when they are first
// touched; data starts a page. Nothing to do on one node. Errors as numa_nodes().
Status interleave_memory(void* data, std::size_t nbytes);

}  // namespace glint
