// What ATen asks of an XPU build, and the registration of the allocators.
#include "devices.h"
#include "hooks.h"
#include "memory.h"
#include "pinned_memory.h"
#include "random.h"
#include "streams.h"

#include <ATen/detail/XPUHooksInterface.h>

#include <new>

namespace simxpu {

using c10::Device;
using c10::DeviceIndex;

// No data members: register_with_torch() may have to construct it over torch's stub.
struct XPUHooks final : at::XPUHooksInterface {
  template <class... A>
  explicit XPUHooks(A&&...) {} // torch up to 2.12 passes XPUHooksArgs

  void init() const override {
    TORCH_CHECK(!visible_devices().empty(), "No XPU devices are available.");
  }
  bool hasXPU() const override {
    return true;
  }
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count() > 0;
  }
  std::string showConfig() const override {
    return "XPU backend (simulated)";
  }
  int32_t getGlobalIdxFromDevice(const Device& d) const override {
    check_index(d.index());
    return d.index();
  }
  const at::Generator& getDefaultGenerator(DeviceIndex i = -1) const override {
    return default_generator(i);
  }
  at::Generator getNewGenerator(DeviceIndex i = -1) const override {
    return new_generator(i);
  }
  DeviceIndex getNumGPUs() const override {
    return device_count();
  }
  DeviceIndex deviceCount() const override {
    return device_count();
  }
  DeviceIndex current_device() const override {
    return simxpu::current_device();
  }
  DeviceIndex getCurrentDevice() const override {
    return simxpu::current_device();
  }
  void setCurrentDevice(DeviceIndex i) const override {
    set_device(i);
  }
  DeviceIndex exchangeDevice(DeviceIndex i) const override {
    return exchange_device(i);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex i) const override {
    return exchange_device(i);
  }
  Device getDeviceFromPtr(void* p) const override {
    return device_of_address(p);
  }
  void deviceSynchronize(DeviceIndex i) const override {
    synchronize_device(i);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator();
  }
  bool isPinnedPtr(const void* p) const override {
    return is_pinned(p);
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return isAvailable();
  }
};

} // namespace simxpu

namespace at { // REGISTER_XPU_HOOKS wants the name "XPUHooks"
using simxpu::XPUHooks;
REGISTER_XPU_HOOKS(XPUHooks)
} // namespace at

namespace simxpu {

static bool replaced_stub = false;
bool hooks_replaced_stub() {
  return replaced_stub;
}

static void put_hooks_in_place() {
  const at::XPUHooksInterface& hooks = at::detail::getXPUHooks();
  if (hooks.isBuilt())
    return;
  // Something asked for the hooks before this library was loaded, so torch has made and cached its stub.  The stub
  // is a heap object with nothing but a vtable pointer: construct ours over it.
  static_assert(sizeof(XPUHooks) == sizeof(at::XPUHooksInterface), "hooks must have no data");
  new (const_cast<at::XPUHooksInterface*>(&hooks)) XPUHooks();
  replaced_stub = true;
}

static const bool registered_with_torch = [] {
  c10::SetAllocator(kXPU, &allocator(), 0);
  at::setHostAllocator(kXPU, &pinned_allocator());
  put_hooks_in_place();
  return true;
}();

} // namespace simxpu
