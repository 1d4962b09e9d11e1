// Pinned host memory: plain host memory that is remembered as pinned.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace simxpu {

at::HostAllocator& pinned_allocator();
bool is_pinned(const void* address);

} // namespace simxpu
