// Streams and events.  Kernels run to their end before they return, so a stream is a number and an event a time
// stamp; only late copies (fault late_copy) are ever outstanding.
#pragma once

#include "common.h"

#include <c10/core/Stream.h>

#include <chrono>
#include <cstdint>

namespace simxpu {

struct Event {
  c10::DeviceIndex device = 0;
  bool timing = false;
  std::chrono::steady_clock::time_point time;
  uint64_t copies = 0; // late copies enqueued before the event, see copies.h
};

c10::Stream current_stream(c10::DeviceIndex index);
void set_current_stream(c10::Stream stream);
c10::Stream new_stream(c10::DeviceIndex index);
// What stands for the SYCL queue: unique per device and stream, never dereferenced.
uintptr_t queue_handle(c10::DeviceIndex index, c10::StreamId id);

double elapsed_ms(const Event* start, const Event* end);

// Everything that was enqueued on the device is done when this returns.
void synchronize_device(c10::DeviceIndex index);

} // namespace simxpu
