#include "card_memory.h"

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace simxpu {

namespace {

constexpr int kEntries = 512;
constexpr int64_t kBeingWritten = -1;

struct Entry {
  std::atomic<int64_t> pid; // 0: free
  std::atomic<int64_t> started; // start time of the process: a pid alone may have been given to somebody else
  std::atomic<int64_t> bytes;
};
static_assert(std::atomic<int64_t>::is_always_lock_free, "entries are shared between processes");

// State and start time of a process from /proc; false if there is no such process or it is only waiting to be reaped.
bool alive_since(int64_t pid, int64_t* started) {
  char path[64], line[1024];
  std::snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
  FILE* f = std::fopen(path, "re");
  if (f == nullptr) { // no such process, or no /proc at all
    *started = 0;
    return access("/proc/self/stat", R_OK) != 0 && (kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM);
  }
  const size_t n = std::fread(line, 1, sizeof line - 1, f);
  std::fclose(f);
  line[n] = 0;
  const char* p = std::strrchr(line, ')'); // the command's name may hold anything, also spaces and parentheses
  char state = 'X';
  long long start = 0;
  if (p == nullptr ||
      std::sscanf(
          p + 1,
          " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld",
          &state,
          &start) != 2)
    return false;
  *started = start;
  return state != 'Z' && state != 'X';
}

} // namespace

struct CardMemory::Table {
  std::atomic<int64_t> entries_used; // entries from here on have never been taken
  Entry entries[kEntries];
};

CardMemory& CardMemory::open(const std::string& path) {
  static std::mutex mutex;
  static auto* maps = new std::unordered_map<std::string, CardMemory*>();
  std::lock_guard<std::mutex> lock(mutex);
  auto& found = (*maps)[path];
  if (found == nullptr) {
    // A new file of the right size reads as zeros, which is an empty table: no initialisation to race for.
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    TORCH_CHECK(fd >= 0, "simxpu: cannot open ", path, ": ", std::strerror(errno), ". It holds the card's shared memory account.");
    void* p = ftruncate(fd, sizeof(Table)) == 0
        ? mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        : MAP_FAILED;
    const int error = errno;
    close(fd);
    TORCH_CHECK(p != MAP_FAILED, "simxpu: cannot map ", path, ": ", std::strerror(error));
    found = new CardMemory(static_cast<Table*>(p));
    std::atexit([] { // an orderly end gives everything back at once
      for (auto& [_, m] : *maps)
        if (m != nullptr && m->entry_ >= 0 && m->owner_ == getpid()) {
          m->table_->entries[m->entry_].bytes = 0;
          m->table_->entries[m->entry_].pid = 0;
          m->entry_ = -1;
        }
    });
  }
  return *found;
}

int CardMemory::own_entry() {
  const int pid = getpid();
  if (entry_ >= 0 && owner_ == pid)
    return entry_;
  for (int attempt = 0; attempt < 2; attempt++) {
    for (int i = 0; i < kEntries; i++) {
      Entry& e = table_->entries[i];
      int64_t free = 0;
      if (e.pid.load() != 0 || !e.pid.compare_exchange_strong(free, kBeingWritten))
        continue;
      int64_t started = 0;
      alive_since(pid, &started);
      e.bytes = 0;
      e.started = started;
      e.pid = pid;
      int64_t used = table_->entries_used.load();
      while (used < i + 1 && !table_->entries_used.compare_exchange_weak(used, i + 1)) {
      }
      owner_ = pid;
      return entry_ = i;
    }
    clear_dead();
  }
  TORCH_CHECK(false, "simxpu: more than ", kEntries, " processes use one simulated card");
}

size_t CardMemory::sum() const {
  int64_t total = 0;
  const int64_t n = table_->entries_used.load(std::memory_order_relaxed);
  for (int64_t i = 0; i < n; i++)
    total += table_->entries[i].bytes.load(std::memory_order_relaxed);
  return static_cast<size_t>(total);
}

void CardMemory::clear_dead() {
  const int64_t n = table_->entries_used.load();
  for (int64_t i = 0; i < n; i++) {
    Entry& e = table_->entries[i];
    int64_t pid = e.pid.load();
    if (pid <= 0)
      continue;
    int64_t started = 0;
    if (alive_since(pid, &started) && started == e.started.load())
      continue;
    if (e.pid.compare_exchange_strong(pid, kBeingWritten)) {
      e.bytes = 0;
      e.pid = 0;
    }
  }
}

bool CardMemory::charge(size_t bytes, size_t capacity) {
  auto& own = table_->entries[own_entry()].bytes;
  // Add first, then look: of two processes that race for the last bytes both may be refused, never both served.
  own += static_cast<int64_t>(bytes);
  if (sum() <= capacity)
    return true;
  clear_dead();
  if (sum() <= capacity)
    return true;
  own -= static_cast<int64_t>(bytes);
  return false;
}

void CardMemory::release(size_t bytes) {
  if (entry_ >= 0 && owner_ == getpid())
    table_->entries[entry_].bytes -= static_cast<int64_t>(bytes);
}

size_t CardMemory::used() {
  clear_dead();
  return sum();
}

} // namespace simxpu
