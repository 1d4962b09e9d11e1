#include "copies.h"

#include "alias.h"
#include "faults.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <deque>
#include <mutex>

namespace simxpu {

using at::Tensor;
using c10::DeviceIndex;

namespace {

struct Copy {
  Tensor target, bytes;
};
struct Queue {
  std::mutex mutex;
  std::deque<Copy> waiting;
  uint64_t enqueued = 0, landed = 0;
};
Queue& queue(DeviceIndex index) {
  static auto* queues = new Queue[kMaxDevices];
  return queues[index];
}
void poison(const Tensor& t) {
  if (t.is_floating_point() || t.is_complex())
    t.fill_(std::numeric_limits<double>::quiet_NaN());
  else
    t.fill_(-1);
}
// The copies are the driver's work: no autograd, no dispatch modes.
struct BelowAutograd {
  c10::impl::ExcludeDispatchKeyGuard guard{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

} // namespace

void enqueue_copy(const Tensor& target, const Tensor& source) {
  BelowAutograd below;
  Tensor bytes = at::empty_like(target);
  bytes.copy_(cpu_view(source));
  poison(target);
  Queue& q = queue(source.device().index());
  std::lock_guard<std::mutex> lock(q.mutex);
  q.waiting.push_back({target, std::move(bytes)});
  q.enqueued++;
}

uint64_t copies_so_far(DeviceIndex index) {
  if (!faults().late_copy)
    return 0;
  Queue& q = queue(index);
  std::lock_guard<std::mutex> lock(q.mutex);
  return q.enqueued;
}

void land_copies(DeviceIndex index, uint64_t up_to) {
  if (!faults().late_copy)
    return;
  BelowAutograd below;
  Queue& q = queue(index);
  std::lock_guard<std::mutex> lock(q.mutex);
  for (; !q.waiting.empty() && q.landed < up_to; q.landed++) {
    q.waiting.front().target.copy_(q.waiting.front().bytes);
    q.waiting.pop_front();
  }
}

} // namespace simxpu
