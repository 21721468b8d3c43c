// What this process has of memory, and what its allocator keeps of it.
#pragma once

#include <cstdint>

namespace glint {

// Bytes that are resident now (VmRSS), and without the pages of files, which the system drops when
// it needs memory (RssAnon); 0 where the system does not say.
std::uint64_t resident_now();
std::uint64_t resident_without_files();

// From here on the allocator shares two arenas among all threads, and gives large blocks back as
// they are freed: for programs that promised a limit. Before threads start.
void keep_heap_small();
// Gives back what is free. Takes milliseconds.
void trim_heap();

}  // namespace glint
