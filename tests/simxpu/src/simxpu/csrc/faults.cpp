#include "faults.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace simxpu {

Faults& faults() {
  static auto* f = new Faults();
  return *f;
}

// Read when it matters, not at load: launchers such as Ray's set RANK inside a running process.
static bool rank_matches(const std::optional<int>& wanted) {
  if (!wanted)
    return true;
  const char* rank = std::getenv("RANK");
  return rank != nullptr && std::atoi(rank) == *wanted;
}

void check_device_alive() {
  const Faults& f = faults();
  if (C10_LIKELY(f.device_lost == 0))
    return;
  static std::atomic<int64_t> operations{0};
  if (!rank_matches(f.device_lost_rank))
    return;
  if (operations.fetch_add(1) + 1 < f.device_lost)
    return;
  // Every later operation fails too: a lost device does not come back within the process.
  TORCH_CHECK(false, "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)");
}

bool call_hangs(const char* collective) {
  Faults& f = faults();
  if (f.hangs.empty())
    return false;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  bool hangs = false;
  for (auto& rule : f.hangs) {
    if (rule.collective != "any" && rule.collective != collective)
      continue;
    if (!rank_matches(rule.rank))
      continue;
    hangs |= ++rule.seen == rule.call;
  }
  return hangs;
}

} // namespace simxpu
