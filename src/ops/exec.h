// What an operation runs with: the kernel table of the chosen ISA, the thread team, and scratch
// memory.
#pragma once

#include "base/thread_pool.h"
#include "kernels/table.h"
#include "ops/workspace.h"

namespace glint {

struct Exec {
  const KernelTable& kernels;
  ThreadPool& pool;
  Workspace& workspace;
};

}  // namespace glint
