// The faults of the real stack, as switches.  Their names, defaults, public reports and the reading of
// SIMXPU_FAULTS live in faults.py; this is what the C++ side looks at.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace simxpu {

// Which call of which collective never ends.
struct HangRule {
  std::string collective; // torch.distributed's name, e.g. "all_reduce"; "any" for all
  int64_t call = 1; // counted from 1
  std::optional<int> rank; // only where RANK is this
  int64_t seen = 0;
};

struct Faults {
  bool avg_abort = false;
  bool avg_double_divide = false;
  bool minmax_sum = false;
  bool premul_refused = false;
  bool mask_frozen = true;
  bool free_memory_zero = false;
  bool free_memory_total = false;
  bool free_memory_raises = false;
  bool no_splitting = true;
  bool masked_group_hang = false;
  bool nan_fill = true;
  bool late_copy = false;
  int64_t device_lost = 0; // the operation at which the device goes away, 0 for never
  std::optional<int> device_lost_rank;
  std::vector<HangRule> hangs;
  double hang_limit = 3600; // seconds after which a simulated hang gives up with an error
};

// Written once, while the library is being set up and before any device work.
Faults& faults();

// Called where the device does something.  Throws what Level Zero reports once the device is lost.
void check_device_alive();

// True if this call of a collective is one that never ends.
bool call_hangs(const char* collective);

} // namespace simxpu
