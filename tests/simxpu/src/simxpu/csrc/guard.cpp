// What c10 asks of a device type: current device, streams, events.
#include "copies.h"
#include "devices.h"
#include "streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

namespace simxpu {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

struct XPUGuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kXPU;
  }
  Device exchangeDevice(Device d) const override {
    return Device(kXPU, d.has_index() ? exchange_device(d.index()) : current_device());
  }
  Device getDevice() const override {
    return Device(kXPU, current_device());
  }
  void setDevice(Device d) const override {
    if (d.has_index())
      set_device(d.index());
  }
  void uncheckedSetDevice(Device d) const noexcept override {
    if (d.has_index() && d.index() >= 0 && d.index() < device_count())
      set_device_unchecked(d.index());
  }
  DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }

  Stream getStream(Device d) const override {
    return current_stream(index_of(d));
  }
  Stream getDefaultStream(Device d) const override {
    return Stream(Stream::UNSAFE, Device(kXPU, index_of(d)), 0);
  }
  Stream getNewStream(Device d, int /*priority*/ = 0) const override {
    return new_stream(index_of(d));
  }
  Stream getStreamFromGlobalPool(Device d, bool /*high_priority*/ = false) const override {
    return new_stream(index_of(d));
  }
  Stream exchangeStream(Stream s) const override {
    auto previous = current_stream(s.device_index());
    set_current_stream(s);
    return previous;
  }
  bool queryStream(const Stream& s) const override {
    land_copies(s.device_index());
    return true;
  }
  void synchronizeStream(const Stream& s) const override {
    synchronize_device(s.device_index());
  }
  void synchronizeDevice(const DeviceIndex i) const override {
    synchronize_device(i);
  }
  void* getStreamNativeHandle(const Stream s) const override {
    return reinterpret_cast<void*>(queue_handle(s.device_index(), s.id()));
  }

  void record(void** event, const Stream& s, const DeviceIndex index, const c10::EventFlag flag) const override {
    TORCH_CHECK(
        index == -1 || index == s.device_index(),
        "Event device index ",
        static_cast<int>(index),
        " does not match recording stream's device index ",
        static_cast<int>(s.device_index()),
        ".");
    if (*event == nullptr)
      *event = new Event();
    auto* e = static_cast<Event*>(*event);
    e->device = s.device_index();
    e->timing = flag == c10::EventFlag::BACKEND_DEFAULT;
    e->time = std::chrono::steady_clock::now();
    e->copies = copies_so_far(e->device);
  }
  // Work that is enqueued later waits for the event: with kernels that have already run, nothing to do.
  void block(void*, const Stream&) const override {}
  bool queryEvent(void* event) const override {
    synchronizeEvent(event);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (auto* e = static_cast<Event*>(event))
      land_copies(e->device, e->copies);
  }
  double elapsedTime(void* start, void* end, const DeviceIndex) const override {
    return elapsed_ms(static_cast<Event*>(start), static_cast<Event*>(end));
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
};
C10_REGISTER_GUARD_IMPL(XPU, XPUGuardImpl)

} // namespace simxpu
