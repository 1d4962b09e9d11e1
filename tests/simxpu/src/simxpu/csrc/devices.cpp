#include "devices.h"

#include "faults.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace simxpu {

using c10::DeviceIndex;

static std::function<DeviceList()>& resolver() {
  static auto* r = new std::function<DeviceList()>();
  return *r;
}
void set_resolver(std::function<DeviceList()> r) {
  resolver() = std::move(r);
}

const DeviceList& visible_devices() {
  static std::atomic<const DeviceList*> known{nullptr};
  const DeviceList* list = known.load(std::memory_order_acquire);
  if (list != nullptr && faults().mask_frozen)
    return *list;
  // No lock is held while the resolver runs: it takes Python's lock, and a thread that holds that one may be
  // waiting here.  Two first users both resolve, and the first to finish decides.  Lists are never freed, since
  // references to them are handed out.
  auto* fresh = new DeviceList(resolver()());
  TORCH_CHECK(fresh->size() <= kMaxDevices, "simxpu: ", fresh->size(), " devices, at most ", kMaxDevices, " are supported");
  if (list == nullptr && !known.compare_exchange_strong(list, fresh, std::memory_order_acq_rel)) {
    delete fresh;
    return *list;
  }
  if (list != nullptr)
    known.store(fresh, std::memory_order_release);
  return *fresh;
}

DeviceIndex device_count() noexcept {
  try {
    return static_cast<DeviceIndex>(visible_devices().size());
  } catch (...) {
    return 0;
  }
}

static thread_local DeviceIndex current = 0;

DeviceIndex current_device() noexcept {
  return current;
}
void check_index(DeviceIndex index) {
  const auto count = visible_devices().size();
  TORCH_CHECK(
      index >= 0 && static_cast<size_t>(index) < count,
      "The device index is out of range. It must be in [0, ",
      count,
      "), but got ",
      static_cast<int>(index),
      ".");
}
void set_device(DeviceIndex index) {
  check_index(index);
  current = index;
}
void set_device_unchecked(DeviceIndex index) noexcept {
  current = index;
}
DeviceIndex exchange_device(DeviceIndex index) {
  const auto previous = current;
  if (index != previous)
    set_device(index);
  return previous;
}
DeviceIndex index_of(c10::Device device) noexcept {
  return device.has_index() ? device.index() : current;
}

} // namespace simxpu
