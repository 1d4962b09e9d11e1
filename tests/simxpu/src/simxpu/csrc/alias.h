// CPU tensors over the bytes of XPU tensors, and the other way round.  Nothing is copied.
#pragma once

#include "common.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace simxpu {

// A CPU tensor over the same bytes as an XPU tensor; keeps the storage alive.  Other tensors come back as they are.
at::Tensor cpu_view(const at::Tensor& t);

// An XPU tensor that owns the bytes of a CPU tensor from now on; undefined tensors come back as they are.
at::Tensor to_device(const at::Tensor& cpu, c10::DeviceIndex index);

c10::Storage cpu_alias_of(c10::StorageImpl* xpu);
c10::Storage xpu_storage_of(const c10::Storage& cpu, c10::DeviceIndex index);

// Lets an existing XPU storage own the bytes of a CPU storage.
void give_bytes(c10::StorageImpl* xpu, const c10::intrusive_ptr<c10::StorageImpl>& cpu, c10::DeviceIndex index);

// A tensor with the given storage and dispatch key, and otherwise like `model`.
at::Tensor tensor_like(c10::Storage storage, c10::DispatchKey key, const at::Tensor& model);

} // namespace simxpu
