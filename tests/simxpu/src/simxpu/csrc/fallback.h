// Running an operator's CPU kernel on XPU tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace simxpu {

// The boxed kernel behind almost every operator on the XPU key: hands the CPU kernel CPU tensors over the same
// bytes, then labels what comes back as XPU tensors.
void run_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Registers the CPU kernels of operators that would otherwise get a composite one.  Call once all other kernels are in.
void finish_registration();

// How many operators have a composite kernel but were given their CPU kernel, see route_composites().
int routed_operators();

} // namespace simxpu
