// Operators that cannot go through the fallback: they make or resize memory, or torch chooses their implementation by
// device type before any kernel is asked.
#include "alias.h"
#include "devices.h"
#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/StorageImpl.h>
#include <torch/library.h>

#include <cstring>

namespace simxpu {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::Storage;
using c10::StorageImpl;

// ---- factories

static DeviceIndex wanted(std::optional<Device> device) {
  const DeviceIndex index = device ? index_of(*device) : current_device();
  check_index(index);
  return index;
}
static void refuse_pinned(std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}
static at::ScalarType or_default(std::optional<at::ScalarType> dtype) {
  return dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype()));
}

static Tensor empty(
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device> device,
    std::optional<bool> pin_memory,
    std::optional<at::MemoryFormat> format) {
  refuse_pinned(pin_memory);
  DeviceScope scope(wanted(device));
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &allocator(), DispatchKeySet(DispatchKey::XPU), or_default(dtype), format);
}

static Tensor empty_strided(
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device> device,
    std::optional<bool> pin_memory) {
  refuse_pinned(pin_memory);
  DeviceScope scope(wanted(device));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size),
      C10_AS_INTARRAYREF_SLOW(stride),
      &allocator(),
      DispatchKeySet(DispatchKey::XPU),
      or_default(dtype));
}

// ---- storages

static void grow(StorageImpl* s, size_t bytes) {
  TORCH_CHECK(s->resizable(), "Trying to resize storage that is not resizable");
  auto p = allocator().allocate_on(bytes, s->device().index());
  if (s->nbytes() && bytes)
    std::memcpy(p.get(), s->data(), std::min(bytes, s->nbytes()));
  s->set_data_ptr_noswap(std::move(p));
  s->set_nbytes(bytes);
}

static void resize_tensor(const Tensor& self, at::IntArrayRef size, at::OptionalIntArrayRef stride) {
  auto* t = self.unsafeGetTensorImpl();
  if (t->sizes() == size && (!stride || t->strides() == *stride))
    return;
  size_t bytes;
  if (stride) {
    t->set_sizes_and_strides(size, *stride);
    bytes = at::detail::computeStorageNbytes(size, *stride, t->itemsize(), t->storage_offset());
  } else {
    t->set_sizes_contiguous(size);
    bytes = at::detail::computeStorageNbytesContiguous(size, t->itemsize(), t->storage_offset());
  }
  if (t->numel() == 0)
    return;
  auto* s = t->unsafe_storage().unsafeGetStorageImpl();
  if (bytes > s->nbytes())
    grow(s, bytes);
}

static const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  resize_tensor(self, C10_AS_INTARRAYREF_SLOW(size), std::nullopt);
  if (format && *format != at::MemoryFormat::Preserve)
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

static Tensor& set_storage_offset(
    Tensor& self,
    Storage source,
    c10::SymInt offset,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  at::native::checkSetStorage<int64_t>(self, source, offset.expect_int(), sizes, strides);
  self.unsafeGetTensorImpl()->set_storage_offset(offset.expect_int());
  resize_tensor(self, sizes, strides.data() != nullptr ? at::OptionalIntArrayRef(strides) : std::nullopt);
  return self;
}

static Tensor& set_storage(Tensor& self, Storage source) {
  const c10::SymInt length(static_cast<int64_t>(source.nbytes() / self.dtype().itemsize()));
  return set_storage_offset(self, std::move(source), 0, c10::SymIntArrayRef(&length, 1), {});
}

static Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (self.is_same(source))
    return self;
  auto size = source.sizes().vec(), stride = source.strides().vec();
  return set_storage_offset(
      self, source.storage(), source.storage_offset(), c10::fromIntArrayRefSlow(size), c10::fromIntArrayRefSlow(stride));
}

static Tensor& set_empty(Tensor& self) {
  DeviceScope scope(self.device().index());
  const c10::SymInt zero(0);
  return set_storage_offset(
      self, Storage(Storage::use_byte_size_t(), 0, &allocator(), true), 0, c10::SymIntArrayRef(&zero, 1), {});
}

// Memory is never reused while a stream still works on it: kernels have ended when they return.
static void record_stream(Tensor&, c10::Stream) {}

// ---- convolution: torch picks the backend by device type, and for XPU that is the "overrideable" pair

static std::optional<Tensor> cpu_view(const std::optional<Tensor>& t) {
  return t && t->defined() ? std::optional<Tensor>(simxpu::cpu_view(*t)) : t;
}

static Tensor convolution(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    bool transposed,
    c10::SymIntArrayRef output_padding,
    c10::SymInt groups) {
  return to_device(
      at::convolution_symint(
          cpu_view(input),
          cpu_view(weight),
          cpu_view(bias),
          stride,
          padding,
          dilation,
          transposed,
          output_padding,
          std::move(groups)),
      input.device().index());
}

static std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad,
    const Tensor& input,
    const Tensor& weight,
    c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation,
    bool transposed,
    c10::SymIntArrayRef output_padding,
    c10::SymInt groups,
    std::array<bool, 3> mask) {
  std::vector<c10::SymInt> bias_sizes{transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  auto r = at::convolution_backward_symint(
      cpu_view(grad),
      cpu_view(input),
      cpu_view(weight),
      at::OptionalSymIntArrayRef(bias_sizes),
      stride,
      padding,
      dilation,
      transposed,
      output_padding,
      groups,
      mask);
  const auto index = input.device().index();
  return {to_device(std::get<0>(r), index), to_device(std::get<1>(r), index), to_device(std::get<2>(r), index)};
}

// ---- attention: scaled_dot_product_attention asks a DispatchStub which implementation the device has, and the CPU
// build asserts on XPU there.  Registered for autograd too, since what it calls is differentiable.

// A CPU view with the same requires_grad: only to be asked what the CPU would choose.
static Tensor stand_in(const Tensor& t) {
  Tensor c = simxpu::cpu_view(t.detach());
  if (t.requires_grad() && at::GradMode::is_enabled())
    c.set_requires_grad(true);
  return c;
}

static Tensor scaled_dot_product_attention(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const std::optional<Tensor>& given_mask,
    double dropout,
    bool causal,
    std::optional<double> scale,
    bool grouped_query) {
  TORCH_CHECK(
      query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type(),
      "Expected query, key, and value to have the same dtype");
  std::optional<Tensor> mask = given_mask;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool)
    mask = at::zeros_like(*mask, mask->options().dtype(query.scalar_type()))
               .masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
  // Take the CPU's own choice, so that results equal a CPU reference bit for bit.
  const bool dense = query.is_xpu() && key.is_xpu() && value.is_xpu() && query.layout() == c10::kStrided &&
      !at::isTensorSubclassLike(query);
  if (dense && !grouped_query) {
    constexpr int64_t kFlash = 1; // SDPBackend::flash_attention
    const auto choice = at::_fused_sdp_choice(
        stand_in(query),
        stand_in(key),
        stand_in(value),
        mask ? std::optional<Tensor>(stand_in(*mask)) : mask,
        dropout,
        causal,
        scale,
        grouped_query);
    if (choice == kFlash)
      return std::get<0>(
          at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, mask, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, mask, dropout, causal, std::nullopt, scale, grouped_query));
}

static int64_t fused_sdp_choice(
    const Tensor&,
    const Tensor&,
    const Tensor&,
    const std::optional<Tensor>&,
    double,
    bool,
    std::optional<double>,
    bool) {
  return 0; // SDPBackend::math
}

TORCH_LIBRARY_IMPL(aten, XPU, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  m.impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
  m.impl("_fused_sdp_choice", TORCH_FN(fused_sdp_choice));
}
TORCH_LIBRARY_IMPL(aten, AutogradXPU, m) {
  m.impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
}

} // namespace simxpu
