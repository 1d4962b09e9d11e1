// The fault late_copy: a non-blocking copy from the device lands only when somebody synchronises.
//
// On the real device `tensor.to("cpu", non_blocking=True)` returns before the bytes are there, and code that reads
// them without synchronising first gets whatever the host memory held.  Here the target is filled with NaN (all
// bits set for integers) until the copy lands.
#pragma once

#include "common.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

namespace simxpu {

// Takes `source` (XPU) as it is now; `target` (CPU) gets it when the copy lands.  The queue keeps the target alive.
void enqueue_copy(const at::Tensor& target, const at::Tensor& source);

// Number of late copies ever enqueued on a device.
uint64_t copies_so_far(c10::DeviceIndex index);

// Lands the copies of a device, oldest first, up to the given number.
void land_copies(c10::DeviceIndex index, uint64_t up_to = std::numeric_limits<uint64_t>::max());

} // namespace simxpu
