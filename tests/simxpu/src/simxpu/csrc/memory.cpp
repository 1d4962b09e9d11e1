#include "memory.h"

#include "card_memory.h"
#include "devices.h"
#include "faults.h"

#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <map>
#include <mutex>

namespace simxpu {

using c10::DataPtr;
using c10::Device;
using c10::DeviceIndex;
using c10::StorageImpl;
using c10::CachingDeviceAllocator::DeviceStats;

namespace {

//: torch's device allocators round every block up to this many bytes.
constexpr size_t kGranularity = 512;
//: Index of the sum over all pools in torch's statistics.
constexpr size_t kAll = 0;

struct DeviceState {
  DeviceStats stats;
  double fraction = 1.0;
};
struct Range {
  size_t bytes;
  DeviceIndex device;
};
// Everything below is guarded by `mutex`, and leaked: tensors may outlive static destruction.
std::mutex mutex;
DeviceState& state(DeviceIndex index) {
  static auto* states = new DeviceState[kMaxDevices];
  return states[index];
}
std::map<uintptr_t, Range>& live_ranges() {
  static auto* ranges = new std::map<uintptr_t, Range>();
  return *ranges;
}

size_t rounded(size_t bytes) {
  return (bytes + kGranularity - 1) / kGranularity * kGranularity;
}
size_t current(const c10::CachingAllocator::StatArray& s) {
  return static_cast<size_t>(s[kAll].current);
}

// Calls f(pool, bytes, capacity) for each tile of the device, until one returns false.
template <class F>
bool each_pool(const VisibleDevice& d, size_t bytes, F f) {
  const size_t n = d.pools.size();
  for (size_t i = 0; i < n; i++)
    if (!f(CardMemory::open(d.pools[i]), bytes / n, d.total_memory / n))
      return false;
  return true;
}
size_t used_on_card(const VisibleDevice& d) {
  size_t used = 0;
  each_pool(d, 0, [&](CardMemory& m, size_t, size_t) {
    used += m.used();
    return true;
  });
  return std::min(used, d.total_memory);
}
bool charge_card(const VisibleDevice& d, size_t bytes) {
  std::vector<std::pair<CardMemory*, size_t>> charged;
  const bool fits = each_pool(d, bytes, [&](CardMemory& m, size_t n, size_t capacity) {
    if (!m.charge(n, capacity))
      return false;
    charged.emplace_back(&m, n);
    return true;
  });
  if (!fits)
    for (auto& [m, n] : charged)
      m->release(n);
  return fits;
}
void release_card(const VisibleDevice& d, size_t bytes) {
  each_pool(d, bytes, [](CardMemory& m, size_t n, size_t) {
    m.release(n);
    return true;
  });
}

std::string mib(size_t bytes) {
  char text[32];
  if (bytes >= size_t(1) << 30)
    std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  else
    std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

// What a process reserves is its high-water mark since it last emptied its cache, as with torch's caching
// allocators; the card is charged for what is reserved, since that is what other processes find missing.
void account(DeviceIndex index, size_t bytes) {
  const size_t block = rounded(bytes);
  const VisibleDevice& card = visible_devices().at(index);
  std::lock_guard<std::mutex> lock(mutex);
  auto& s = state(index);
  const size_t allocated = current(s.stats.allocated_bytes), reserved = current(s.stats.reserved_bytes);
  const size_t growth = allocated + block > reserved ? allocated + block - reserved : 0;
  const auto limit = static_cast<size_t>(static_cast<double>(card.total_memory) * s.fraction);
  if (growth > 0) {
    if (reserved + growth > limit || !charge_card(card, growth)) {
      s.stats.num_ooms++;
      TORCH_CHECK_WITH(
          OutOfMemoryError,
          false,
          "XPU out of memory. Tried to allocate ",
          mib(bytes),
          ". GPU ",
          static_cast<int>(index),
          " has a total capacity of ",
          mib(card.total_memory),
          " of which ",
          mib(card.total_memory - used_on_card(card)),
          " is free. Of the allocated memory ",
          mib(allocated),
          " is allocated by PyTorch, and ",
          mib(reserved - allocated),
          " is reserved by PyTorch but unallocated. (simulated device)");
    }
    s.stats.reserved_bytes[kAll].increase(growth);
  }
  s.stats.allocated_bytes[kAll].increase(block);
  s.stats.active_bytes[kAll].increase(block);
  s.stats.requested_bytes[kAll].increase(bytes);
  s.stats.allocation[kAll].increase(1);
}

// One piece of device memory; the context of its DataPtr.
struct Block {
  void* address;
  size_t bytes;
  DeviceIndex device;
  c10::intrusive_ptr<StorageImpl> owner; // CPU storage that owns the bytes; if null, they are ours to free
};
Block* new_block(void* address, size_t bytes, DeviceIndex index, c10::intrusive_ptr<StorageImpl> owner = {}) {
  std::lock_guard<std::mutex> lock(mutex);
  live_ranges()[reinterpret_cast<uintptr_t>(address)] = {bytes, index};
  return new Block{address, bytes, index, std::move(owner)};
}
void delete_block(void* context) {
  auto* b = static_cast<Block*>(context);
  {
    const size_t block = rounded(b->bytes);
    std::lock_guard<std::mutex> lock(mutex);
    auto& s = state(b->device).stats;
    s.allocated_bytes[kAll].decrease(block);
    s.active_bytes[kAll].decrease(block);
    s.requested_bytes[kAll].decrease(b->bytes);
    s.allocation[kAll].decrease(1);
    live_ranges().erase(reinterpret_cast<uintptr_t>(b->address));
  }
  if (!b->owner)
    c10::free_cpu(b->address);
  delete b;
}
void delete_nothing(void*) {}

struct SimulatedAllocator final : Allocator {
  DataPtr allocate_on(size_t bytes, DeviceIndex index) override {
    if (bytes == 0)
      return {nullptr, nullptr, &delete_nothing, Device(kXPU, index)};
    check_device_alive();
    account(index, bytes);
    void* p = c10::alloc_cpu(bytes);
    if (faults().nan_fill)
      std::memset(p, 0xff, bytes); // NaN in every floating-point format
    return {p, new_block(p, bytes, index), &delete_block, Device(kXPU, index)};
  }
  DataPtr allocate(size_t bytes) override {
    check_index(current_device());
    return allocate_on(bytes, current_device());
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    const auto& devices = visible_devices();
    std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < devices.size(); i++) {
      auto& s = state(static_cast<DeviceIndex>(i)).stats;
      const size_t unused = current(s.reserved_bytes) - current(s.allocated_bytes);
      if (unused == 0)
        continue;
      s.reserved_bytes[kAll].decrease(unused);
      release_card(devices[i], unused);
    }
  }
  void recordStream(const DataPtr&, c10::Stream) override {}
  DeviceStats getDeviceStats(DeviceIndex index) override {
    check_index(index);
    std::lock_guard<std::mutex> lock(mutex);
    return state(index).stats;
  }
  template <class F>
  void each_statistic(DeviceIndex index, F f) {
    check_index(index);
    std::lock_guard<std::mutex> lock(mutex);
    auto& s = state(index).stats;
    for (auto* a : {&s.allocated_bytes, &s.reserved_bytes, &s.active_bytes, &s.requested_bytes, &s.allocation})
      f((*a)[kAll]);
  }
  void resetAccumulatedStats(DeviceIndex index) override {
    each_statistic(index, [](auto& s) { s.reset_accumulated(); });
  }
  void resetPeakStats(DeviceIndex index) override {
    each_statistic(index, [](auto& s) { s.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex index) override {
    return memory_info(index);
  }
};

} // namespace

Allocator& allocator() {
  static auto* a = new SimulatedAllocator();
  return *a;
}

DataPtr adopt(const c10::intrusive_ptr<StorageImpl>& cpu, DeviceIndex index) {
  void* p = cpu->mutable_data();
  const size_t bytes = cpu->nbytes();
  if (p == nullptr || bytes == 0) // a ZeroTensor has a size but no bytes
    return {nullptr, nullptr, &delete_nothing, Device(kXPU, index)};
  account(index, bytes);
  return {p, new_block(p, bytes, index, cpu), &delete_block, Device(kXPU, index)};
}

Device device_of_address(const void* address) {
  const auto a = reinterpret_cast<uintptr_t>(address);
  std::lock_guard<std::mutex> lock(mutex);
  auto it = live_ranges().upper_bound(a);
  const bool found = it != live_ranges().begin() && a < std::prev(it)->first + std::prev(it)->second.bytes;
  TORCH_CHECK(found, "The pointer is not an XPU pointer.");
  return Device(kXPU, std::prev(it)->second.device);
}

std::pair<size_t, size_t> memory_info(DeviceIndex index) {
  check_index(index);
  const auto& f = faults();
  const VisibleDevice& card = visible_devices().at(index);
  TORCH_CHECK(
      !f.free_memory_raises,
      "The device doesn't support querying the available free memory. You can file an issue at "
      "https://github.com/pytorch/pytorch/issues to help us prioritize its implementation.");
  if (f.free_memory_zero)
    return {0, card.total_memory};
  if (f.free_memory_total)
    return {card.total_memory, card.total_memory};
  return {card.total_memory - used_on_card(card), card.total_memory};
}

void set_memory_fraction(double fraction, DeviceIndex index) {
  check_index(index);
  std::lock_guard<std::mutex> lock(mutex);
  state(index).fraction = fraction;
}
double memory_fraction(DeviceIndex index) {
  check_index(index);
  std::lock_guard<std::mutex> lock(mutex);
  return state(index).fraction;
}

} // namespace simxpu
