// Collectives in flight.
#pragma once

#include "common.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace simxpu {

// Gloo works behind one collective, and what remains to be done with their results (an average's division).
//
// Gloo's own works cannot be handed out: some finish only inside wait() and do their copies anew at each further
// wait(), which would undo the division.  Here the inner wait and the epilogue run exactly once, on whichever thread comes
// first: a caller of wait(), or the group's progress thread for collectives nobody is waiting for yet.
class XcclWork final : public c10d::Work {
 public:
  XcclWork(
      int rank,
      c10d::OpType type,
      std::vector<c10::intrusive_ptr<c10d::Work>> inner,
      std::vector<at::Tensor> outputs,
      std::function<void()> epilogue = {});

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // Waits and runs the epilogue, unless that has been done.  Does not throw: the error is kept for wait().
  void finish_once(std::chrono::milliseconds timeout = kNoTimeout) noexcept;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> inner_;
  std::vector<at::Tensor> outputs_;
  std::function<void()> epilogue_;
  std::mutex running_; // held while finishing
  mutable std::mutex state_; // guards what follows
  bool done_ = false;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// A collective that never ends (faults hang and masked_group_hang).
class HungWork final : public c10d::Work {
 public:
  HungWork(int rank, c10d::OpType type, std::string what);
  bool isCompleted() override;
  bool isSuccess() const override;
  // Blocks until the timeout, if there is one, or for SIMXPU_HANG_LIMIT seconds; then throws.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::string what_;
};

// Finishes works in the order they were started, on a thread of its own that exists only once it is needed.
class Progress {
 public:
  ~Progress();
  void add(c10::intrusive_ptr<XcclWork> work);

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<c10::intrusive_ptr<XcclWork>> works;
    bool stop = false;
  };
  static void run(std::shared_ptr<Shared> shared);
  std::shared_ptr<Shared> shared_;
};

// Called as the interpreter ends.  From then on progress threads drop nothing: what a work holds (tensors with Python
// objects, callbacks) needs the interpreter's lock, and a thread that asks a finalising interpreter for it is unwound by force
// (`terminate called without an active exception`).
void leave_progress_threads();

} // namespace simxpu
