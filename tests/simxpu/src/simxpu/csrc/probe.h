// Counts what reaches the process group below c10d, whatever route it came: dist.*, functional collectives, DTensor,
// DDP, FSDP.  A test that no AVG is sent must look here, since gloo itself would accept one.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace simxpu {

void count_collective(const std::string& name); // "all_reduce:avg", "all_gather", ...
std::map<std::string, int64_t> collective_counts();
void reset_collective_counts();

} // namespace simxpu
