// Random numbers of the device.
//
// The state of a generator is (seed, philox offset), 16 bytes, as on the real device: DTensor's random number
// tracker reads and writes exactly these.  A random operation runs the CPU's kernel with a CPU generator that is
// seeded from the pair, so the numbers are not those of real hardware, but they are reproducible.
#pragma once

#include "common.h"

#include <ATen/core/Generator.h>

namespace simxpu {

const at::Generator& default_generator(c10::DeviceIndex index); // -1: of the current device
at::Generator new_generator(c10::DeviceIndex index); // -1: on the current device

// A CPU generator for the next random operation; advances the XPU generator.
at::Generator next_cpu_generator(const at::Generator& xpu);

} // namespace simxpu
