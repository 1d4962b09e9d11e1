#include "probe.h"

#include <mutex>

namespace simxpu {

static std::mutex mutex;
static std::map<std::string, int64_t>& counts() { // guarded by `mutex`
  static auto* c = new std::map<std::string, int64_t>();
  return *c;
}

void count_collective(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex);
  counts()[name]++;
}
std::map<std::string, int64_t> collective_counts() {
  std::lock_guard<std::mutex> lock(mutex);
  return counts();
}
void reset_collective_counts() {
  std::lock_guard<std::mutex> lock(mutex);
  counts().clear();
}

} // namespace simxpu
