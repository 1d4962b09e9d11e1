#include "work.h"

#include "faults.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <atomic>
#include <thread>

namespace simxpu {

using c10::intrusive_ptr;
using c10::ivalue::Future;

static intrusive_ptr<Future> new_future(const std::vector<at::Tensor>& outputs) {
  std::vector<c10::Device> devices;
  for (auto& t : outputs)
    if (t.defined() && t.is_xpu()) {
      devices.push_back(t.device());
      break; // one device per rank
    }
  return c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()), devices);
}

XcclWork::XcclWork(
    int rank,
    c10d::OpType type,
    std::vector<intrusive_ptr<c10d::Work>> inner,
    std::vector<at::Tensor> outputs,
    std::function<void()> epilogue)
    : Work(rank, type), inner_(std::move(inner)), outputs_(std::move(outputs)), epilogue_(std::move(epilogue)) {}

namespace {
std::atomic<bool> leaving{false};
std::atomic<int> touching_python{0}; // progress threads between the end of a wait and the release of its work
thread_local bool on_progress_thread = false;

// Holds the end of the interpreter back while a progress thread does what may need the interpreter.
struct TouchesPython {
  TouchesPython() {
    ++touching_python;
  }
  ~TouchesPython() {
    --touching_python;
  }
  bool too_late() const {
    return leaving && on_progress_thread;
  }
};
} // namespace

void leave_progress_threads() {
  leaving = true;
  for (int i = 0; i < 1000 && touching_python; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void XcclWork::finish_once(std::chrono::milliseconds timeout) noexcept {
  std::lock_guard<std::mutex> running(running_);
  {
    std::lock_guard<std::mutex> lock(state_);
    if (done_)
      return;
  }
  std::exception_ptr error;
  try {
    for (auto& w : inner_)
      w->wait(timeout);
    if (epilogue_)
      epilogue_();
  } catch (...) {
    error = std::current_exception();
  }
  TouchesPython hold;
  if (hold.too_late()) { // kept for the rest of the process, which is short
    new auto(std::move(inner_));
    new auto(std::move(epilogue_));
    std::lock_guard<std::mutex> lock(state_);
    done_ = true;
    error_ = error;
    return;
  }
  inner_.clear();
  epilogue_ = {};
  intrusive_ptr<Future> future;
  {
    std::lock_guard<std::mutex> lock(state_);
    done_ = true;
    error_ = error;
    future = future_;
  }
  if (!future)
    return;
  if (error)
    future->setErrorIfNeeded(error);
  else
    future->markCompleted(c10::IValue(outputs_));
}

bool XcclWork::isCompleted() {
  std::lock_guard<std::mutex> lock(state_);
  return done_;
}
bool XcclWork::isSuccess() const {
  std::lock_guard<std::mutex> lock(state_);
  return done_ && !error_;
}
std::exception_ptr XcclWork::exception() const {
  std::lock_guard<std::mutex> lock(state_);
  return error_;
}
bool XcclWork::wait(std::chrono::milliseconds timeout) {
  finish_once(timeout);
  if (auto error = exception())
    std::rethrow_exception(error);
  return true;
}
void XcclWork::synchronize() {
  wait();
}
std::vector<at::Tensor> XcclWork::result() {
  return outputs_;
}
intrusive_ptr<Future> XcclWork::getFuture() {
  std::lock_guard<std::mutex> lock(state_);
  if (!future_) {
    future_ = new_future(outputs_);
    if (done_ && error_)
      future_->setError(error_);
    else if (done_)
      future_->markCompleted(c10::IValue(outputs_));
  }
  return future_;
}

HungWork::HungWork(int rank, c10d::OpType type, std::string what) : Work(rank, type), what_(std::move(what)) {}

bool HungWork::isCompleted() {
  return false;
}
bool HungWork::isSuccess() const {
  return false;
}
bool HungWork::wait(std::chrono::milliseconds timeout) {
  using namespace std::chrono;
  const auto limit = duration_cast<milliseconds>(duration<double>(faults().hang_limit));
  const bool timed = timeout != kNoTimeout && timeout < limit;
  std::this_thread::sleep_for(timed ? timeout : limit);
  TORCH_CHECK(
      false, "simxpu: ", what_, " did not complete within ", (timed ? timeout : limit).count() / 1000.0, " s (simulated hang)");
}
void HungWork::synchronize() {
  wait();
}
intrusive_ptr<Future> HungWork::getFuture() {
  return new_future({});
}

Progress::~Progress() {
  if (!shared_)
    return;
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
}

void Progress::add(intrusive_ptr<XcclWork> work) {
  if (!shared_) {
    shared_ = std::make_shared<Shared>();
    // Detached: at the end of the group it may sit in a gloo wait that only gloo's timeout ends.
    std::thread(run, shared_).detach();
  }
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->works.push_back(std::move(work));
  shared_->changed.notify_one();
}

void Progress::run(std::shared_ptr<Shared> shared) {
  on_progress_thread = true;
  for (;;) {
    intrusive_ptr<XcclWork> work;
    {
      std::unique_lock<std::mutex> lock(shared->mutex);
      shared->changed.wait(lock, [&] { return shared->stop || !shared->works.empty(); });
      if (shared->works.empty())
        return;
      work = std::move(shared->works.front());
      shared->works.pop_front();
    }
    work->finish_once();
    TouchesPython hold;
    if (hold.too_late())
      (void)work.release();
    else
      work.reset();
  }
}

} // namespace simxpu
