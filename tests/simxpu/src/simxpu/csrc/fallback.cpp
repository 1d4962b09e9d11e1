// The one kernel most operators share.
//
// Since the CPU kernel sees CPU tensors over the very same bytes, views, in-place operations and out= need no kernel of
// their own.  What is left to do here: enforce the same-device rule, swap Device and Generator arguments, give XPU
// storages to new outputs, and carry over what the kernel resized.
#include "fallback.h"

#include "alias.h"
#include "copies.h"
#include "devices.h"
#include "faults.h"
#include "memory.h"
#include "random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace simxpu {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::Storage;
using c10::StorageImpl;

namespace {

// What has to be known of an operator; worked out once per thread and operator.
struct OperatorInfo {
  std::string name;
  bool devices_may_differ = false; // copies, and indexing with CPU indices
  bool random = false;
  bool wants_contiguous = false; // torch hands XPU tensors over as they are where it makes others contiguous
  int generator_argument = -1;
  std::vector<bool> writes; // per argument
};

const OperatorInfo& info_of(const c10::OperatorHandle& op) {
  static thread_local std::unordered_map<const c10::FunctionSchema*, OperatorInfo> known;
  const auto& schema = op.schema();
  auto it = known.find(&schema);
  if (it != known.end())
    return it->second;
  static const std::unordered_set<std::string> mixed = {
      "aten::copy_",     "aten::_copy_from",    "aten::_copy_from_and_resize", "aten::index",
      "aten::index_put", "aten::index_put_",    "aten::_index_put_impl_",      "aten::_pack_padded_sequence",
      "aten::_to_copy",  "aten::_unsafe_index", "aten::_unsafe_index_put",     "aten::_foreach_copy_",
  };
  OperatorInfo info;
  info.name = schema.name();
  info.devices_may_differ = mixed.count(info.name) > 0;
  info.wants_contiguous = info.name == "aten::native_group_norm" || info.name == "aten::native_group_norm_backward";
  info.random = op.hasTag(at::Tag::nondeterministic_seeded);
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto& a = schema.arguments()[i];
    info.writes.push_back(a.alias_info() && a.alias_info()->isWrite());
    auto type = a.real_type();
    if (type->kind() == c10::TypeKind::OptionalType)
      type = type->castRaw<c10::OptionalType>()->getElementType();
    if (type->kind() == c10::TypeKind::GeneratorType)
      info.generator_argument = static_cast<int>(i);
  }
  return known.emplace(&schema, std::move(info)).first->second;
}

// One call of an operator: which CPU tensor stands for which XPU tensor.
class Call {
 public:
  explicit Call(const OperatorInfo& info) : info_(info) {}

  //: The device of a Device argument (factories and conversions); decides where outputs live.
  std::optional<DeviceIndex> output_device;

  Tensor to_cpu(const Tensor& t, bool written) {
    if (!t.defined())
      return t;
    if (!t.is_xpu()) {
      if (!info_.devices_may_differ && t.device().is_cpu() && t.dim() > 0) {
        if (device_)
          refuse(Device(kXPU, *device_), t.device());
        cpu_tensor_seen_ = true;
      }
      return t;
    }
    TORCH_CHECK(
        t.layout() == c10::kStrided && t.has_storage(),
        "simxpu: only dense strided tensors are supported (",
        info_.name,
        ")");
    const auto index = t.device().index();
    if (!device_)
      device_ = index;
    else if (*device_ != index && !info_.devices_may_differ)
      refuse(Device(kXPU, *device_), t.device());
    if (cpu_tensor_seen_ && !info_.devices_may_differ)
      refuse(t.device(), Device(c10::kCPU));
    for (auto& pair : tensors_)
      if (pair.xpu.is_same(t)) {
        pair.written |= written;
        return pair.cpu;
      }
    auto* xpu = t.storage().unsafeGetStorageImpl();
    Storage cpu;
    for (auto& pair : storages_)
      if (pair.xpu == xpu)
        cpu = pair.cpu;
    if (!cpu) {
      cpu = cpu_alias_of(xpu);
      storages_.push_back({xpu, cpu, xpu->data(), xpu->nbytes(), index});
    }
    Tensor c = tensor_like(cpu, DispatchKey::CPU, t);
    tensors_.push_back({t, c, written});
    return c;
  }

  DeviceIndex target() const {
    return output_device ? *output_device : device_ ? *device_ : current_device();
  }

  // After the kernel: carries resized storages and changed shapes over to the XPU tensors.
  void write_back() {
    for (auto& pair : storages_) {
      auto* cpu = pair.cpu.unsafeGetStorageImpl();
      if (cpu->data() == pair.data && cpu->nbytes() == pair.bytes)
        continue;
      if (cpu->nbytes() == 0) {
        pair.xpu->set_data_ptr_noswap(allocator().allocate_on(0, pair.device));
        pair.xpu->set_nbytes(0);
      } else if (cpu->data() == pair.data) {
        pair.xpu->set_nbytes(cpu->nbytes());
      } else {
        give_bytes(pair.xpu, pair.cpu.getWeakStorageImpl().lock(), pair.device);
      }
    }
    for (auto& pair : tensors_) {
      if (!pair.written)
        continue;
      auto *xpu = pair.xpu.unsafeGetTensorImpl(), *cpu = pair.cpu.unsafeGetTensorImpl();
      if (!stands_for(cpu->storage().unsafeGetStorageImpl(), xpu->storage().unsafeGetStorageImpl()))
        xpu->set_storage_keep_dtype(xpu_storage(cpu->storage()));
      if (xpu->sizes() != cpu->sizes() || xpu->strides() != cpu->strides() ||
          xpu->storage_offset() != cpu->storage_offset())
        xpu->set_sizes_and_strides(cpu->sizes(), cpu->strides(), cpu->storage_offset());
    }
  }

  // A result of the kernel as an XPU tensor: the argument it is, a view of one, or a new tensor.
  Tensor to_xpu(const Tensor& cpu) {
    if (!cpu.defined() || !cpu.device().is_cpu())
      return cpu;
    for (auto& pair : tensors_)
      if (pair.cpu.is_same(cpu))
        return pair.xpu;
    TORCH_CHECK(
        cpu.layout() == c10::kStrided && cpu.has_storage(),
        "simxpu: ",
        info_.name,
        " returned a tensor that is not dense");
    return tensor_like(xpu_storage(cpu.storage()), DispatchKey::XPU, cpu);
  }

 private:
  struct StoragePair {
    StorageImpl* xpu;
    Storage cpu;
    const void* data;
    size_t bytes;
    DeviceIndex device;
  };
  struct TensorPair {
    Tensor xpu, cpu;
    bool written;
  };

  [[noreturn]] void refuse(const Device& a, const Device& b) const {
    TORCH_CHECK(
        false,
        "Expected all tensors to be on the same device, but found at least two devices, ",
        a,
        " and ",
        b,
        "! (in ",
        info_.name,
        ")");
  }
  bool stands_for(StorageImpl* cpu, StorageImpl* xpu) const {
    for (auto& pair : storages_)
      if (pair.cpu.unsafeGetStorageImpl() == cpu && pair.xpu == xpu)
        return true;
    return false;
  }
  Storage xpu_storage(const Storage& cpu) {
    auto* impl = cpu.unsafeGetStorageImpl();
    for (auto& pair : storages_)
      if (pair.cpu.unsafeGetStorageImpl() == impl)
        return Storage(c10::intrusive_ptr<StorageImpl>::reclaim_copy(pair.xpu));
    for (auto& [known, xpu] : new_storages_) // several outputs may share a storage
      if (known == impl)
        return xpu;
    Storage xpu = xpu_storage_of(cpu, target());
    new_storages_.emplace_back(impl, xpu);
    return xpu;
  }

  const OperatorInfo& info_;
  c10::SmallVector<StoragePair, 8> storages_;
  c10::SmallVector<TensorPair, 8> tensors_;
  std::vector<std::pair<StorageImpl*, Storage>> new_storages_;
  std::optional<DeviceIndex> device_;
  bool cpu_tensor_seen_ = false;
};

// For random operators without a generator argument: lends the CPU's default generator our state, and puts its own back.
class LentDefaultGenerator {
 public:
  explicit LentDefaultGenerator(const at::Generator& lent)
      : generator_(at::detail::getDefaultCPUGenerator()), own_state_(generator_.get_state()) {
    generator_.set_state(lent.get_state());
  }
  ~LentDefaultGenerator() {
    generator_.set_state(own_state_);
  }

 private:
  at::Generator generator_;
  Tensor own_state_;
};

void arguments_to_cpu(Call& call, const OperatorInfo& info, torch::jit::Stack* stack, size_t first, size_t count) {
  for (size_t i = 0; i < count; i++) {
    IValue& v = (*stack)[first + i];
    const bool written = info.writes[i];
    if (v.isTensor()) {
      const Tensor& t = v.toTensor();
      if (!t.defined())
        continue;
      Tensor c = call.to_cpu(t, written);
      v = IValue(info.wants_contiguous ? c.contiguous() : std::move(c));
    } else if (v.isTensorList()) {
      auto given = v.toTensorList();
      c10::List<Tensor> list;
      list.reserve(given.size());
      for (const Tensor& t : given)
        list.push_back(call.to_cpu(t, written));
      v = IValue(std::move(list));
    } else if (v.isOptionalTensorList()) {
      auto given = v.toOptionalTensorList();
      c10::List<std::optional<Tensor>> list;
      list.reserve(given.size());
      for (std::optional<Tensor> t : given)
        list.push_back(t.has_value() && t->defined() ? std::optional<Tensor>(call.to_cpu(*t, written)) : t);
      v = IValue(std::move(list));
    } else if (v.isDevice() && v.toDevice().type() == kXPU) {
      call.output_device = index_of(v.toDevice());
      v = IValue(Device(c10::kCPU));
    }
  }
}

void results_to_xpu(Call& call, torch::jit::Stack* stack, size_t first, size_t count) {
  for (size_t i = 0; i < count; i++) {
    IValue& v = (*stack)[first + i];
    if (v.isTensor()) {
      if (v.toTensor().defined())
        v = IValue(call.to_xpu(v.toTensor()));
    } else if (v.isTensorList()) {
      auto given = v.toTensorList();
      c10::List<Tensor> list;
      list.reserve(given.size());
      for (const Tensor& t : given)
        list.push_back(call.to_xpu(t));
      v = IValue(std::move(list));
    }
  }
}

} // namespace

void run_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_device_alive();
  const auto& schema = op.schema();
  const OperatorInfo& info = info_of(op);
  static const bool trace = [] {
    const char* v = std::getenv("SIMXPU_TRACE");
    return v != nullptr && *v != 0 && *v != '0';
  }();
  if (C10_UNLIKELY(trace))
    std::fprintf(stderr, "[simxpu] %s.%s\n", info.name.c_str(), schema.overload_name().c_str());

  Call call(info);
  const size_t first = stack->size() - schema.arguments().size();
  arguments_to_cpu(call, info, stack, first, schema.arguments().size());

  std::optional<LentDefaultGenerator> lent;
  if (info.random) {
    at::Generator g;
    if (info.generator_argument >= 0 && !(*stack)[first + info.generator_argument].isNone())
      g = (*stack)[first + info.generator_argument].toGenerator();
    if (!g.defined())
      g = default_generator(call.target());
    at::Generator cpu = next_cpu_generator(g);
    if (info.generator_argument >= 0)
      (*stack)[first + info.generator_argument] = IValue(cpu);
    else
      lent.emplace(cpu);
  }
  {
    // Below autograd, autocast and dispatch modes: they have had their turn on the XPU tensors.
    c10::impl::ExcludeDispatchKeyGuard below(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
        DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot}));
    op.callBoxed(stack);
  }
  lent.reset();
  call.write_back();
  results_to_xpu(call, stack, stack->size() - schema.returns().size(), schema.returns().size());
}

// copy_ and reading a scalar are where the host meets the device's queue.
static void copy_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(faults().late_copy)) {
    const size_t first = stack->size() - 3; // self, src, non_blocking
    const Tensor self = (*stack)[first].toTensor(), src = (*stack)[first + 1].toTensor();
    if (src.is_xpu() && self.device().is_cpu()) {
      if ((*stack)[first + 2].toBool()) {
        check_device_alive();
        enqueue_copy(self, src);
        torch::jit::drop(*stack, 3);
        stack->emplace_back(self);
        return;
      }
      land_copies(src.device().index()); // the queue is in order
    }
  }
  run_cpu_kernel(op, stack);
}
static void scalar_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(faults().late_copy))
    land_copies(stack->back().toTensor().device().index());
  run_cpu_kernel(op, stack);
}

TORCH_LIBRARY_IMPL(_, XPU, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel>());
}
TORCH_LIBRARY_IMPL(aten, XPU, m) {
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&copy_kernel>());
  m.impl("_local_scalar_dense", torch::CppFunction::makeFromBoxedFunction<&scalar_kernel>());
}

// Where an operator has both a CPU kernel and a composite one, XPU would get the composite: slower, and not equal to the
// CPU's result bit for bit.  Give those their CPU kernel as well.  Composite*Implicit* ones are left alone: a backend
// kernel would cut them off from autograd.
static int routed = 0;
static torch::Library* route_composites() {
  auto* library = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::XPU, __FILE__, __LINE__);
  const std::string prefix = "aten::";
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind(prefix, 0) != 0)
      continue;
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasKernelForDispatchKey(DispatchKey::CPU) || op->hasKernelForDispatchKey(DispatchKey::XPU))
      continue;
    if (!op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
        !op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional))
      continue;
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    library->impl(
        (name.name.substr(prefix.size()) + overload).c_str(),
        torch::CppFunction::makeFromBoxedFunction<&run_cpu_kernel>());
    routed++;
  }
  return library;
}

int routed_operators() {
  return routed;
}

// Not a static initialiser: those of other files, with their direct kernels, must have run.
void finish_registration() {
  static torch::Library* library = route_composites();
  (void)library;
}

} // namespace simxpu
