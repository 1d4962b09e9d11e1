#include "pinned_memory.h"

#include <c10/core/impl/alloc_cpu.h>

#include <cstring>
#include <map>
#include <mutex>

namespace simxpu {

namespace {

std::mutex mutex;
std::map<uintptr_t, size_t>& pinned_ranges() { // guarded by `mutex`; leaked, tensors may outlive static destruction
  static auto* ranges = new std::map<uintptr_t, size_t>();
  return *ranges;
}
void free_pinned(void* p) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    pinned_ranges().erase(reinterpret_cast<uintptr_t>(p));
  }
  c10::free_cpu(p);
}
void delete_nothing(void*) {}

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0)
      return {nullptr, nullptr, &delete_nothing, c10::Device(c10::kCPU)};
    void* p = c10::alloc_cpu(bytes);
    std::lock_guard<std::mutex> lock(mutex);
    pinned_ranges()[reinterpret_cast<uintptr_t>(p)] = bytes;
    return {p, p, &free_pinned, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool record_event(void* p, void*, c10::Stream) override {
    return is_pinned(p);
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    return {};
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

} // namespace

at::HostAllocator& pinned_allocator() {
  static auto* a = new PinnedAllocator();
  return *a;
}

bool is_pinned(const void* address) {
  const auto a = reinterpret_cast<uintptr_t>(address);
  std::lock_guard<std::mutex> lock(mutex);
  auto it = pinned_ranges().upper_bound(a);
  return it != pinned_ranges().begin() && a < std::prev(it)->first + std::prev(it)->second;
}

} // namespace simxpu
