#include "alias.h"

#include "memory.h"

#include <c10/core/TensorImpl.h>

namespace simxpu {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::Storage;
using c10::StorageImpl;

static void drop_reference(void* storage) {
  c10::raw::intrusive_ptr::decref(static_cast<StorageImpl*>(storage));
}

Storage cpu_alias_of(StorageImpl* xpu) {
  c10::raw::intrusive_ptr::incref(xpu);
  return Storage(c10::make_intrusive<StorageImpl>(
      StorageImpl::use_byte_size_t(),
      xpu->nbytes(),
      c10::DataPtr(xpu->mutable_data(), xpu, &drop_reference, Device(c10::kCPU)),
      c10::GetAllocator(c10::kCPU),
      /*resizable=*/true));
}

void give_bytes(StorageImpl* xpu, const c10::intrusive_ptr<StorageImpl>& cpu, DeviceIndex index) {
  xpu->set_data_ptr_noswap(adopt(cpu, index));
  xpu->set_nbytes(cpu->nbytes());
}

Storage xpu_storage_of(const Storage& cpu, DeviceIndex index) {
  auto xpu = c10::make_intrusive<StorageImpl>(
      StorageImpl::use_byte_size_t(), 0, allocator().allocate_on(0, index), &allocator(), /*resizable=*/true);
  give_bytes(xpu.get(), cpu.getWeakStorageImpl().lock(), index);
  return Storage(std::move(xpu));
}

Tensor tensor_like(Storage storage, DispatchKey key, const Tensor& model) {
  auto keys = c10::DispatchKeySet(key);
  if (model._is_zerotensor())
    keys = keys.add(DispatchKey::ZeroTensor);
  Tensor t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, model.dtype());
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(model.sizes(), model.strides(), model.storage_offset());
  if (model.is_conj())
    t._set_conj(true);
  if (model.is_neg())
    t._set_neg(true);
  if (model.unsafeGetTensorImpl()->is_wrapped_number())
    impl->set_wrapped_number(true);
  return t;
}

Tensor cpu_view(const Tensor& t) {
  if (!t.defined() || !t.is_xpu())
    return t;
  return tensor_like(cpu_alias_of(t.storage().unsafeGetStorageImpl()), DispatchKey::CPU, t);
}

Tensor to_device(const Tensor& cpu, DeviceIndex index) {
  return cpu.defined() ? tensor_like(xpu_storage_of(cpu.storage(), index), DispatchKey::XPU, cpu) : cpu;
}

} // namespace simxpu
