#include "random.h"

#include "devices.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <cstring>
#include <mutex>

namespace simxpu {

using c10::Device;
using c10::DeviceIndex;

namespace {

//: Philox makes four numbers at a time, and offsets are counted in numbers.
constexpr uint64_t kOffsetStep = 4;

// splitmix64, to spread (seed, offset) pairs that differ little over all seeds.
uint64_t mixed(uint64_t seed, uint64_t offset) {
  if (offset == 0)
    return seed; // a fresh manual_seed(s) gives the numbers of a CPU generator with that seed
  uint64_t z = seed + offset * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

struct XPUGenerator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;

  explicit XPUGenerator(DeviceIndex index)
      : c10::GeneratorImpl(Device(kXPU, index), c10::DispatchKeySet(c10::DispatchKey::XPU)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  uint64_t current_seed() const override {
    return seed_;
  }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    return seed_;
  }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % kOffsetStep == 0, "offset must be a multiple of 4");
    offset_ = offset;
  }
  uint64_t get_offset() const override {
    return offset_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(
        state.device().is_cpu() && state.is_contiguous() && state.dtype() == caffe2::TypeMeta::Make<uint8_t>(),
        "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(state.numel() == 16 || state.numel() == 8, "RNG state is wrong size");
    auto* bytes = static_cast<const uint8_t*>(state.data());
    std::memcpy(&seed_, bytes, 8);
    offset_ = 0;
    if (state.numel() == 16)
      std::memcpy(&offset_, bytes + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor t = at::detail::empty_cpu({16}, at::kByte);
    std::memcpy(t.mutable_data_ptr<uint8_t>(), &seed_, 8);
    std::memcpy(t.mutable_data_ptr<uint8_t>() + 8, &offset_, 8);
    return t.getIntrusivePtr();
  }
  XPUGenerator* clone_impl() const override {
    auto* g = new XPUGenerator(device_.index());
    g->seed_ = seed_;
    g->offset_ = offset_;
    return g;
  }
  at::Generator next() {
    std::lock_guard<std::mutex> lock(mutex_);
    auto g = at::detail::createCPUGenerator(mixed(seed_, offset_));
    offset_ += kOffsetStep;
    return g;
  }
};

} // namespace

const at::Generator& default_generator(DeviceIndex index) {
  static std::mutex mutex;
  static auto* generators = new at::Generator[kMaxDevices];
  if (index == -1)
    index = current_device();
  check_index(index);
  std::lock_guard<std::mutex> lock(mutex);
  auto& g = generators[index];
  if (!g.defined()) {
    g = new_generator(index);
    g.seed();
  }
  return g;
}

at::Generator new_generator(DeviceIndex index) {
  return at::make_generator<XPUGenerator>(index == -1 ? current_device() : index);
}

at::Generator next_cpu_generator(const at::Generator& xpu) {
  TORCH_CHECK(
      xpu.device().type() == kXPU, "Expected a 'xpu' device type for generator but found '", xpu.device().type(), "'");
  return static_cast<XPUGenerator*>(xpu.unsafeGetGeneratorImpl())->next();
}

} // namespace simxpu
