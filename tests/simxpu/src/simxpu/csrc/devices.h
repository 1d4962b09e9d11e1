// The devices this process can see, and which one is current.
#pragma once

#include "common.h"

#include <functional>
#include <string>
#include <vector>

namespace simxpu {

struct VisibleDevice {
  std::string uuid; // 32 hex digits
  size_t total_memory = 0; // bytes
  // Files through which processes share the memory of this device: one per tile it consists of.
  std::vector<std::string> pools;
};
using DeviceList = std::vector<VisibleDevice>;

// Works out the devices from the environment (visibility.py).  Called at the first use of the device, like the
// enumeration of a real driver, and with the fault mask_frozen off again whenever somebody asks.
void set_resolver(std::function<DeviceList()> resolver);

// Throws what the resolver throws (for instance for a selector that cannot be read).
const DeviceList& visible_devices();

// As visible_devices().size(), but 0 where that throws.
c10::DeviceIndex device_count() noexcept;

c10::DeviceIndex current_device() noexcept;
void set_device(c10::DeviceIndex index);
void set_device_unchecked(c10::DeviceIndex index) noexcept;
c10::DeviceIndex exchange_device(c10::DeviceIndex index);
// The index itself if the device has one, else the current device's.
c10::DeviceIndex index_of(c10::Device device) noexcept;
void check_index(c10::DeviceIndex index);

// Makes a device current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(c10::DeviceIndex index) : previous_(exchange_device(index)) {}
  ~DeviceScope() {
    set_device_unchecked(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  c10::DeviceIndex previous_;
};

} // namespace simxpu
