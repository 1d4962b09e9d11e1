// Device memory: host memory that is accounted to a device.
#pragma once

#include "common.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>

namespace simxpu {

class Allocator : public c10::DeviceAllocator {
 public:
  // New memory on a device.  Throws OutOfMemoryError if the card is full.
  virtual c10::DataPtr allocate_on(size_t bytes, c10::DeviceIndex index) = 0;
};
Allocator& allocator();

// Makes device memory of bytes that a CPU storage owns: they are accounted, not copied.
c10::DataPtr adopt(const c10::intrusive_ptr<c10::StorageImpl>& cpu, c10::DeviceIndex index);

// The device whose memory holds the address; throws if there is none.
c10::Device device_of_address(const void* address);

// (free, total) in bytes, seen by all processes on the card; the faults free_memory_* apply.
std::pair<size_t, size_t> memory_info(c10::DeviceIndex index);

void set_memory_fraction(double fraction, c10::DeviceIndex index);
double memory_fraction(c10::DeviceIndex index);

} // namespace simxpu
