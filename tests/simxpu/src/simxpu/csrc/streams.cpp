#include "streams.h"

#include "copies.h"
#include "devices.h"
#include "faults.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>

namespace simxpu {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

//: torch's pools hold 32 streams per device and hand them out in turn.
static constexpr int64_t kPoolSize = 32;

static thread_local std::array<c10::StreamId, kMaxDevices> current{};

Stream current_stream(DeviceIndex index) {
  check_index(index);
  return Stream(Stream::UNSAFE, Device(kXPU, index), current[index]);
}
void set_current_stream(Stream stream) {
  check_index(stream.device_index());
  current[stream.device_index()] = stream.id();
}
Stream new_stream(DeviceIndex index) {
  static std::atomic<int64_t> next{0};
  check_index(index);
  return Stream(Stream::UNSAFE, Device(kXPU, index), 1 + next++ % kPoolSize);
}
uintptr_t queue_handle(DeviceIndex index, c10::StreamId id) {
  return 0x1000 + static_cast<uintptr_t>(index) * 256 + static_cast<uintptr_t>(id);
}
double elapsed_ms(const Event* start, const Event* end) {
  TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
  TORCH_CHECK(
      start->timing && end->timing, "Both events must be created with argument 'enable_timing=True'.");
  return std::chrono::duration<double, std::milli>(end->time - start->time).count();
}
void synchronize_device(DeviceIndex index) {
  check_index(index);
  check_device_alive();
  land_copies(index);
}

} // namespace simxpu
