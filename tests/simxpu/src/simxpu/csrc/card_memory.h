// The memory of one tile of a card, shared by the processes of this machine.
//
// A small file, mapped by every process that uses the tile, with one entry per process: how many bytes it holds.
// There is no lock: a process writes its own entry only, and entries of processes that died are cleared by whoever
// runs out of memory or asks how much is free.
#pragma once

#include <cstddef>
#include <string>

namespace simxpu {

class CardMemory {
 public:
  // Maps the file, creating it if need be.  One object per path and process; never destroyed.
  static CardMemory& open(const std::string& path);

  // Adds `bytes` to what this process holds, or returns false if all processes together would exceed `capacity`.
  bool charge(size_t bytes, size_t capacity);
  void release(size_t bytes);
  // Bytes held by all living processes.
  size_t used();

  struct Table;

 private:
  explicit CardMemory(Table* table) : table_(table) {}
  size_t sum() const;
  void clear_dead();
  int own_entry();

  Table* table_;
  int entry_ = -1;
  int owner_ = 0; // pid that entry_ belongs to: a forked child takes an entry of its own
};

} // namespace simxpu
