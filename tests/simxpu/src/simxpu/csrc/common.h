// What every part of the simulated device needs.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>

namespace simxpu {

//: torch's own XPU device type.  Nothing of the CPU build uses it, so there is nothing to collide with.
inline constexpr c10::DeviceType kXPU = c10::DeviceType::XPU;

//: Upper bound of the devices one process can see (a c10::DeviceIndex is 8 bits).
inline constexpr int kMaxDevices = 64;

} // namespace simxpu
