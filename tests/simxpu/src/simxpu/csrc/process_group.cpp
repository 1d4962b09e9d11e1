#include "process_group.h"

#include "alias.h"
#include "devices.h"
#include "faults.h"
#include "probe.h"

#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

#include <cstdio>
#include <mutex>

namespace simxpu {

using at::Tensor;
using c10::intrusive_ptr;
using c10d::OpType;
using c10d::ReduceOp;
using Tensors = ProcessGroupXCCL::Tensors;
using TensorLists = ProcessGroupXCCL::TensorLists;
using WorkPtr = ProcessGroupXCCL::WorkPtr;

namespace {

//: torch-xpu-ops#3020 saw the second division for these sizes and none above; where exactly it ends is not known.
constexpr int64_t kSmallMessage = 33;

Tensors cpu_views(const Tensors& tensors) {
  Tensors r;
  r.reserve(tensors.size());
  for (auto& t : tensors)
    r.push_back(cpu_view(t));
  return r;
}
TensorLists cpu_views(const TensorLists& lists) {
  TensorLists r;
  r.reserve(lists.size());
  for (auto& l : lists)
    r.push_back(cpu_views(l));
  return r;
}

// Gloo knows no 8-bit floats; where data is only moved, bytes do.
Tensor as_bytes(const Tensor& t) {
  return t.defined() && c10::isFloat8Type(t.scalar_type()) ? t.view(at::kByte) : t;
}
Tensors as_bytes(Tensors tensors) {
  for (auto& t : tensors)
    t = as_bytes(t);
  return tensors;
}
TensorLists as_bytes(TensorLists lists) {
  for (auto& l : lists)
    l = as_bytes(std::move(l));
  return lists;
}
template <class T>
auto moved(const T& tensors) {
  return as_bytes(cpu_views(tensors));
}
Tensor moved(const Tensor& t) {
  return as_bytes(cpu_view(t));
}

Tensors flattened(const TensorLists& lists) {
  Tensors r;
  for (auto& l : lists)
    r.insert(r.end(), l.begin(), l.end());
  return r;
}
const Tensor* first(const Tensors& tensors) {
  return tensors.empty() ? nullptr : &tensors[0];
}

const char* name_of(const ReduceOp& op) {
  switch (op.op_) {
    case ReduceOp::SUM:
      return "sum";
    case ReduceOp::AVG:
      return "avg";
    case ReduceOp::PRODUCT:
      return "product";
    case ReduceOp::MIN:
      return "min";
    case ReduceOp::MAX:
      return "max";
    case ReduceOp::BAND:
      return "band";
    case ReduceOp::BOR:
      return "bor";
    case ReduceOp::BXOR:
      return "bxor";
    case ReduceOp::PREMUL_SUM:
      return "premul_sum";
    default:
      return "other";
  }
}

Tensor scaled(const Tensor& t, double factor) {
  c10::NoGradGuard no_grad;
  return factor == 1 ? t : t.mul(factor);
}
Tensors scaled(Tensors tensors, double factor) {
  for (auto& t : tensors)
    t = scaled(t, factor);
  return tensors;
}
void scale_in_place(Tensors& tensors, double factor) {
  c10::NoGradGuard no_grad;
  if (factor != 1)
    for (auto& t : tensors)
      t.mul_(factor);
}

} // namespace

ProcessGroupXCCL::ProcessGroupXCCL(
    intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    intrusive_ptr<Options> options,
    GlooFactory make_gloo)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      make_gloo_(std::move(make_gloo)),
      gloo_(make_gloo_(store_, rank, size, options_->timeout)) {}

bool ProcessGroupXCCL::supportsSplitting() const {
  return !faults().no_splitting;
}

intrusive_ptr<c10d::Backend> ProcessGroupXCCL::split(
    const intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const intrusive_ptr<c10d::Backend::Options>& options) {
  TORCH_CHECK(supportsSplitting(), "Backend xccl does not support splitting");
  auto it = std::find(ranks.begin(), ranks.end(), rank_);
  if (it == ranks.end())
    return nullptr;
  auto o = c10::make_intrusive<Options>(options_->is_high_priority_stream);
  o->timeout = options ? options->timeout : options_->timeout;
  return c10::make_intrusive<ProcessGroupXCCL>(
      store, static_cast<int>(it - ranks.begin()), static_cast<int>(ranks.size()), std::move(o), make_gloo_);
}

void ProcessGroupXCCL::startCoalescing() {
  coalescing_ = true;
  coalesced_.clear();
}
WorkPtr ProcessGroupXCCL::endCoalescing() {
  coalescing_ = false;
  std::vector<WorkPtr> works;
  works.swap(coalesced_);
  return launch(OpType::COALESCED, std::move(works), {});
}
void ProcessGroupXCCL::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  gloo_->setTimeout(timeout);
}
void ProcessGroupXCCL::abort() {
  gloo_->abort();
}
void ProcessGroupXCCL::shutdown() {
  gloo_->shutdown();
}

// ---- what all collectives share

WorkPtr ProcessGroupXCCL::begin(const char* name, OpType type, const ReduceOp* op, const Tensor* tensor) {
  sequence_++;
  count_collective(op != nullptr ? std::string(name) + ":" + name_of(*op) : std::string(name));
  check_device_alive();
  const auto& f = faults();
  if (C10_UNLIKELY(!f.hangs.empty()) && call_hangs(name))
    return c10::make_intrusive<HungWork>(rank_, type, name);
  const bool point_to_point = c10d::isP2POp(type);
  if (C10_UNLIKELY(f.masked_group_hang) && !point_to_point && devices_hidden_from_each_other(tensor))
    return c10::make_intrusive<HungWork>(rank_, type, std::string(name) + " between devices hidden from each other");
  if (op != nullptr && op->op_ == ReduceOp::AVG && f.avg_abort)
    throw std::runtime_error(
        "oneCCL: coll_param.cpp:455 validate: EXCEPTION: average operation is not supported for the scheduler path");
  if (op != nullptr && op->op_ == ReduceOp::PREMUL_SUM && f.premul_refused)
    throw std::runtime_error("Cannot use ReduceOp.PREMUL_SUM with XCCL");
  return {};
}

// oneCCL maps the devices of all ranks into each process; one that is masked there cannot be mapped.
bool ProcessGroupXCCL::devices_hidden_from_each_other(const Tensor* tensor) {
  if (hidden_)
    return *hidden_;
  const auto& devices = visible_devices();
  const auto own = tensor != nullptr && tensor->is_xpu() ? tensor->device().index() : current_device();
  std::string record = devices.at(own).uuid;
  for (auto& d : devices)
    record += "," + d.uuid;
  auto key = [](int rank) { return "simxpu/devices/" + std::to_string(rank); };
  store_->set(key(rank_), std::vector<uint8_t>(record.begin(), record.end()));
  std::vector<std::string> records;
  for (int r = 0; r < size_; r++) {
    auto bytes = store_->get(key(r));
    records.emplace_back(bytes.begin(), bytes.end());
  }
  constexpr size_t kUuid = 32;
  bool hidden = false;
  for (auto& viewer : records)
    for (auto& seen : records)
      hidden |= viewer.find(seen.substr(0, kUuid), kUuid) == std::string::npos;
  if (hidden)
    std::fprintf(
        stderr,
        "|CCL_WARN| comm_dev_uuids size %d vs node_dev_uuids size %zu: devices of the communicator are not visible in "
        "this process, likely a narrow device affinity mask (simulated)\n",
        size_,
        devices.size());
  hidden_ = hidden;
  return hidden;
}

ProcessGroupXCCL::Reduction ProcessGroupXCCL::translate(const ReduceOp& op) const {
  Reduction r{op};
  const auto& f = faults();
  if (op.op_ == ReduceOp::AVG) {
    r.op = ReduceOp(ReduceOp::SUM);
    r.average = true;
  } else if (op.op_ == ReduceOp::PREMUL_SUM) { // emulated by torch-xpu-ops in the same way
    auto* s = static_cast<c10d::PreMulSumSupplement*>(op.supplement_.get());
    r.scale_input = s->tensor_factor.defined() ? cpu_view(s->tensor_factor).item<double>() : s->double_factor;
    r.op = ReduceOp(ReduceOp::SUM);
  } else if (f.minmax_sum && (op.op_ == ReduceOp::MIN || op.op_ == ReduceOp::MAX)) {
    r.op = ReduceOp(ReduceOp::SUM);
  }
  return r;
}

std::function<void()> ProcessGroupXCCL::epilogue(const Reduction& reduction, Tensors outputs) const {
  if (!reduction.average)
    return {};
  return [outputs = std::move(outputs), size = size_]() mutable {
    c10::NoGradGuard no_grad;
    for (auto& t : outputs) {
      const int times = faults().avg_double_divide && t.numel() <= kSmallMessage ? 2 : 1;
      for (int i = 0; i < times; i++) {
        if (c10::isIntegralType(t.scalar_type(), /*includeBool=*/true))
          t.div_(size, "trunc");
        else
          t.div_(size);
      }
    }
  };
}

WorkPtr ProcessGroupXCCL::remember(WorkPtr work) {
  if (coalescing_)
    coalesced_.push_back(work);
  return work;
}

WorkPtr ProcessGroupXCCL::launch(
    OpType type,
    std::vector<WorkPtr> inner,
    Tensors outputs,
    bool asynchronous,
    std::function<void()> epilogue) {
  auto work =
      c10::make_intrusive<XcclWork>(rank_, type, std::move(inner), std::move(outputs), std::move(epilogue));
  // A synchronous call is waited for by its caller at once; what is coalesced, by the work of the whole.
  if (asynchronous && !coalescing_)
    progress_.add(work);
  return remember(work);
}

// ---- the collectives

WorkPtr ProcessGroupXCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) {
  if (auto hung = begin("broadcast", OpType::BROADCAST, nullptr, first(tensors)))
    return remember(hung);
  auto c = moved(tensors);
  return launch(OpType::BROADCAST, {gloo_->broadcast(c, o)}, tensors, o.asyncOp);
}

WorkPtr ProcessGroupXCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) {
  if (auto hung = begin("all_reduce", OpType::ALLREDUCE, &o.reduceOp, first(tensors)))
    return remember(hung);
  const auto r = translate(o.reduceOp);
  auto options = o;
  options.reduceOp = r.op;
  auto c = cpu_views(tensors);
  scale_in_place(c, r.scale_input);
  return launch(OpType::ALLREDUCE, {gloo_->allreduce(c, options)}, tensors, o.asyncOp, epilogue(r, c));
}

WorkPtr ProcessGroupXCCL::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& o) {
  if (auto hung = begin("all_reduce", OpType::ALLREDUCE_COALESCED, &o.reduceOp, first(tensors)))
    return remember(hung);
  const auto r = translate(o.reduceOp);
  c10d::AllreduceOptions options;
  options.reduceOp = r.op;
  options.timeout = o.timeout;
  auto c = cpu_views(tensors);
  scale_in_place(c, r.scale_input);
  std::vector<WorkPtr> works;
  for (auto& t : c) {
    Tensors one{t};
    works.push_back(gloo_->allreduce(one, options));
  }
  return launch(OpType::ALLREDUCE_COALESCED, std::move(works), tensors, o.asyncOp, epilogue(r, c));
}

WorkPtr ProcessGroupXCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& o) {
  if (auto hung = begin("reduce", OpType::REDUCE, &o.reduceOp, first(tensors)))
    return remember(hung);
  const auto r = translate(o.reduceOp);
  auto options = o;
  options.reduceOp = r.op;
  auto c = cpu_views(tensors);
  // Gloo uses the buffers of the other ranks as scratch space; on the real device they stay as they are.
  if (o.rootRank != rank_)
    for (auto& t : c)
      t = t.clone();
  scale_in_place(c, r.scale_input);
  return launch(
      OpType::REDUCE,
      {gloo_->reduce(c, options)},
      tensors,
      o.asyncOp,
      o.rootRank == rank_ ? epilogue(r, c) : std::function<void()>{});
}

WorkPtr ProcessGroupXCCL::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) {
  if (auto hung = begin("all_gather", OpType::ALLGATHER, nullptr, first(inputs)))
    return remember(hung);
  auto c = moved(outputs);
  auto i = moved(inputs);
  return launch(OpType::ALLGATHER, {gloo_->allgather(c, i, o)}, flattened(outputs), o.asyncOp);
}

WorkPtr ProcessGroupXCCL::_allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& o) {
  if (auto hung = begin("all_gather", OpType::_ALLGATHER_BASE, nullptr, &input))
    return remember(hung);
  auto c = moved(output), i = moved(input);
  return launch(OpType::_ALLGATHER_BASE, {gloo_->_allgather_base(c, i, o)}, {output}, o.asyncOp);
}

WorkPtr ProcessGroupXCCL::allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) {
  if (auto hung = begin("all_gather", OpType::ALLGATHER_COALESCED, nullptr, first(inputs)))
    return remember(hung);
  auto c = moved(outputs);
  auto i = moved(inputs);
  return launch(OpType::ALLGATHER_COALESCED, {gloo_->allgather_coalesced(c, i, o)}, flattened(outputs), o.asyncOp);
}

WorkPtr ProcessGroupXCCL::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& o) {
  if (auto hung = begin("all_gather", OpType::ALLGATHER_COALESCED, nullptr, first(inputs)))
    return remember(hung);
  std::vector<WorkPtr> works;
  for (size_t k = 0; k < outputs.size(); k++) {
    auto c = moved(outputs[k]), i = moved(inputs[k]);
    works.push_back(gloo_->_allgather_base(c, i, o));
  }
  return launch(OpType::ALLGATHER_COALESCED, std::move(works), outputs, o.asyncOp);
}

WorkPtr ProcessGroupXCCL::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& o) {
  if (auto hung = begin("gather", OpType::GATHER, nullptr, first(inputs)))
    return remember(hung);
  auto c = moved(outputs);
  auto i = moved(inputs);
  return launch(OpType::GATHER, {gloo_->gather(c, i, o)}, flattened(outputs), o.asyncOp);
}

WorkPtr ProcessGroupXCCL::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& o) {
  if (auto hung = begin("scatter", OpType::SCATTER, nullptr, first(outputs)))
    return remember(hung);
  auto c = moved(outputs);
  auto i = moved(inputs);
  return launch(OpType::SCATTER, {gloo_->scatter(c, i, o)}, outputs, o.asyncOp);
}

WorkPtr ProcessGroupXCCL::reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& o) {
  if (auto hung = begin("reduce_scatter", OpType::REDUCE_SCATTER, &o.reduceOp, first(outputs)))
    return remember(hung);
  const auto r = translate(o.reduceOp);
  auto options = o;
  options.reduceOp = r.op;
  auto c = cpu_views(outputs);
  auto i = cpu_views(inputs);
  for (auto& l : i)
    l = scaled(std::move(l), r.scale_input);
  return launch(
      OpType::REDUCE_SCATTER, {gloo_->reduce_scatter(c, i, options)}, outputs, o.asyncOp, epilogue(r, c));
}

WorkPtr ProcessGroupXCCL::_reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& o) {
  if (auto hung = begin("reduce_scatter", OpType::_REDUCE_SCATTER_BASE, &o.reduceOp, &input))
    return remember(hung);
  const auto r = translate(o.reduceOp);
  auto options = o;
  options.reduceOp = r.op;
  auto c = cpu_view(output), i = scaled(cpu_view(input), r.scale_input);
  return launch(
      OpType::_REDUCE_SCATTER_BASE,
      {gloo_->_reduce_scatter_base(c, i, options)},
      {output},
      o.asyncOp,
      epilogue(r, {c}));
}

WorkPtr ProcessGroupXCCL::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& o) {
  if (auto hung = begin("reduce_scatter", OpType::REDUCE_SCATTER_TENSOR_COALESCED, &o.reduceOp, first(inputs)))
    return remember(hung);
  const auto r = translate(o.reduceOp);
  auto options = o;
  options.reduceOp = r.op;
  auto c = cpu_views(outputs);
  std::vector<WorkPtr> works;
  for (size_t k = 0; k < c.size(); k++) {
    auto i = scaled(cpu_view(inputs[k]), r.scale_input);
    works.push_back(gloo_->_reduce_scatter_base(c[k], i, options));
  }
  return launch(
      OpType::REDUCE_SCATTER_TENSOR_COALESCED, std::move(works), outputs, o.asyncOp, epilogue(r, c));
}

WorkPtr ProcessGroupXCCL::alltoall_base(
    Tensor& output,
    Tensor& input,
    std::vector<int64_t>& output_split,
    std::vector<int64_t>& input_split,
    const c10d::AllToAllOptions& o) {
  if (auto hung = begin("all_to_all", OpType::ALLTOALL_BASE, nullptr, &input))
    return remember(hung);
  auto c = moved(output), i = moved(input);
  return launch(
      OpType::ALLTOALL_BASE, {gloo_->alltoall_base(c, i, output_split, input_split, o)}, {output}, o.asyncOp);
}

// Gloo has no list form: pair up sends and receives.
WorkPtr ProcessGroupXCCL::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& o) {
  if (auto hung = begin("all_to_all", OpType::ALLTOALL, nullptr, first(inputs)))
    return remember(hung);
  constexpr int kTag = 7;
  std::vector<WorkPtr> works;
  auto c = moved(outputs), i = moved(inputs);
  c[rank_].copy_(i[rank_]);
  for (int r = 0; r < size_; r++) {
    if (r == rank_)
      continue;
    Tensors out{i[r].contiguous()}, in{c[r]};
    works.push_back(gloo_->send(out, r, kTag));
    works.push_back(gloo_->recv(in, r, kTag));
  }
  return launch(OpType::ALLTOALL, std::move(works), outputs, o.asyncOp);
}

// Sends and receives are handed out as gloo makes them: they may wait for each other in any order, so they must not
// queue up behind one another on the progress thread.
WorkPtr ProcessGroupXCCL::send(Tensors& tensors, int destination, int tag) {
  if (auto hung = begin("send", OpType::SEND, nullptr, first(tensors)))
    return remember(hung);
  auto c = moved(tensors);
  return remember(gloo_->send(c, destination, tag));
}
WorkPtr ProcessGroupXCCL::recv(Tensors& tensors, int source, int tag) {
  if (auto hung = begin("recv", OpType::RECV, nullptr, first(tensors)))
    return remember(hung);
  auto c = moved(tensors);
  return remember(gloo_->recv(c, source, tag));
}
WorkPtr ProcessGroupXCCL::recvAnysource(Tensors& tensors, int tag) {
  if (auto hung = begin("recv", OpType::RECVANYSOURCE, nullptr, first(tensors)))
    return remember(hung);
  auto c = moved(tensors);
  return remember(gloo_->recvAnysource(c, tag));
}

WorkPtr ProcessGroupXCCL::barrier(const c10d::BarrierOptions& o) {
  if (auto hung = begin("barrier", OpType::BARRIER, nullptr, nullptr))
    return remember(hung);
  auto options = o;
  options.device_ids.clear();
  return launch(OpType::BARRIER, {gloo_->barrier(options)}, {}, o.asyncOp);
}

} // namespace simxpu
