// The c10d operators on the XPU key.  An XPU build registers these; the CPU build has none.  Each hands its arguments to
// the group's backend for XPU tensors.
#include <ATen/ops/isnan.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

namespace c10d {

using at::Tensor;

namespace {
using Group = c10::intrusive_ptr<ProcessGroup>;
using Reduction = c10::intrusive_ptr<ReduceOp>;
using WorkPtr = c10::intrusive_ptr<Work>;
using Tensors = std::vector<Tensor>;
using TensorLists = std::vector<std::vector<Tensor>>;

// Options of any collective with the two fields all of them have.
template <class O>
O with(int64_t timeout, bool async) {
  O o;
  o.timeout = std::chrono::milliseconds(timeout);
  o.asyncOp = async;
  return o;
}
c10::intrusive_ptr<Backend> backend(const Group& group) {
  return group->getBackend(c10::DeviceType::XPU);
}
WorkPtr send_xpu(at::TensorList t, const Group& group, int64_t dst, int64_t tag) {
  auto v = t.vec();
  return backend(group)->send(v, (int)dst, (int)tag);
}
WorkPtr recv_xpu(at::TensorList t, const Group& group, int64_t src, int64_t tag) {
  auto v = t.vec();
  return backend(group)->recv(v, (int)src, (int)tag);
}
WorkPtr recv_any_xpu(at::TensorList t, const Group& group, int64_t tag) {
  auto v = t.vec();
  return backend(group)->recvAnysource(v, (int)tag);
}
WorkPtr reduce_xpu(at::TensorList t, const Group& group, const Reduction& op, int64_t root, int64_t rt, bool async, int64_t timeout) {
  auto v = t.vec();
  auto o = with<ReduceOptions>(timeout, async);
  o.reduceOp = *op;
  o.rootRank = root;
  o.rootTensor = rt;
  return backend(group)->reduce(v, o);
}
std::tuple<Tensors, WorkPtr> broadcast_xpu(at::TensorList t, const Group& group, int64_t root, int64_t rt, bool async, int64_t timeout) {
  auto v = t.vec();
  auto o = with<BroadcastOptions>(timeout, async);
  o.rootRank = root;
  o.rootTensor = rt;
  auto w = backend(group)->broadcast(v, o);
  return {std::move(v), w};
}
std::tuple<Tensors, WorkPtr> allreduce_xpu(
    at::TensorList t,
    const Group& group,
    const Reduction& op,
    const std::optional<Tensor>& sparse,
    bool async,
    int64_t timeout) {
  auto v = t.vec();
  auto o = with<AllreduceOptions>(timeout, async);
  o.reduceOp = *op;
  auto w = backend(group)->allreduce(v, o);
  return {std::move(v), w};
}
WorkPtr allreduce_coalesced_xpu(at::TensorList t, const Group& group, const Reduction& op, bool async, int64_t timeout) {
  auto v = t.vec();
  AllreduceCoalescedOptions o;
  o.timeout = std::chrono::milliseconds(timeout);
  o.reduceOp = *op;
  o.asyncOp = async;
  return backend(group)->allreduce_coalesced(v, o);
}
std::tuple<TensorLists, WorkPtr> allgather_xpu(const TensorLists& out, at::TensorList in, const Group& group, bool async, int64_t timeout) {
  auto i = in.vec();
  auto& oo = const_cast<TensorLists&>(out);
  auto w = backend(group)->allgather(oo, i, with<AllgatherOptions>(timeout, async));
  return {out, w};
}
std::tuple<Tensor, WorkPtr> allgather_base_xpu(Tensor& out, Tensor& in, const Group& group, bool async, int64_t timeout) {
  auto w = backend(group)->_allgather_base(out, in, with<AllgatherOptions>(timeout, async));
  return {out, w};
}
WorkPtr allgather_coalesced_xpu(const TensorLists& out, const at::TensorList& in, const Group& group, bool async) {
  auto i = in.vec();
  AllgatherOptions o;
  o.asyncOp = async;
  return backend(group)->allgather_coalesced(const_cast<TensorLists&>(out), i, o);
}
WorkPtr allgather_into_xpu(at::TensorList out, at::TensorList in, const Group& group, bool async) {
  auto o = out.vec(), i = in.vec();
  AllgatherOptions opt;
  opt.asyncOp = async;
  return backend(group)->allgather_into_tensor_coalesced(o, i, opt);
}
std::tuple<Tensors, WorkPtr> reduce_scatter_xpu(
    const at::TensorList& out,
    const TensorLists& in,
    const Group& group,
    const Reduction& op,
    bool async,
    int64_t timeout) {
  auto v = out.vec();
  auto o = with<ReduceScatterOptions>(timeout, async);
  o.reduceOp = *op;
  auto w = backend(group)->reduce_scatter(v, const_cast<TensorLists&>(in), o);
  return {std::move(v), w};
}
std::tuple<Tensor, WorkPtr> reduce_scatter_base_xpu(
    Tensor& out,
    Tensor& in,
    const Group& group,
    const Reduction& op,
    bool async,
    int64_t timeout) {
  auto o = with<ReduceScatterOptions>(timeout, async);
  o.reduceOp = *op;
  auto w = backend(group)->_reduce_scatter_base(out, in, o);
  return {out, w};
}
WorkPtr reduce_scatter_coalesced_xpu(
    at::TensorList out,
    at::TensorList in,
    const Group& group,
    const Reduction& op,
    bool async,
    int64_t timeout) {
  auto v = out.vec(), i = in.vec();
  auto o = with<ReduceScatterOptions>(timeout, async);
  o.reduceOp = *op;
  return backend(group)->reduce_scatter_tensor_coalesced(v, i, o);
}
WorkPtr gather_xpu(const TensorLists& out, const at::TensorList& in, const Group& group, int64_t root, bool async, int64_t timeout) {
  auto i = in.vec();
  auto o = with<GatherOptions>(timeout, async);
  o.rootRank = root;
  return backend(group)->gather(const_cast<TensorLists&>(out), i, o);
}
std::tuple<Tensors, WorkPtr> scatter_xpu(
    const at::TensorList& out,
    const TensorLists& in,
    const Group& group,
    int64_t root,
    bool async,
    int64_t timeout) {
  auto v = out.vec();
  auto o = with<ScatterOptions>(timeout, async);
  o.rootRank = root;
  auto w = backend(group)->scatter(v, const_cast<TensorLists&>(in), o);
  return {std::move(v), w};
}
std::tuple<Tensors, WorkPtr> alltoall_xpu(
    const at::TensorList& out,
    const at::TensorList& in,
    const Group& group,
    bool async,
    int64_t timeout) {
  auto v = out.vec(), i = in.vec();
  auto w = backend(group)->alltoall(v, i, with<AllToAllOptions>(timeout, async));
  return {std::move(v), w};
}
WorkPtr alltoall_base_xpu(
    Tensor& out,
    Tensor& in,
    const Group& group,
    std::vector<int64_t> os,
    std::vector<int64_t> is,
    bool async,
    int64_t timeout) {
  return backend(group)->alltoall_base(out, in, os, is, with<AllToAllOptions>(timeout, async));
}
WorkPtr barrier_xpu(Tensor, const Group& group, const std::vector<int64_t>& ids, bool async, int64_t timeout) {
  auto o = with<BarrierOptions>(timeout, async);
  o.device_ids = ids;
  return backend(group)->barrier(o);
}
void check_for_nan_xpu(const Tensor& t) {
  if (t.is_floating_point() && t.isnan().any().item<bool>())
    TORCH_CHECK(false, "NaN found in collective input");
}
} // namespace

TORCH_LIBRARY_IMPL(c10d, XPU, m) {
  m.impl("send", send_xpu);
  m.impl("recv_", recv_xpu);
  m.impl("recv_any_source_", recv_any_xpu);
  m.impl("reduce_", reduce_xpu);
  m.impl("broadcast_", broadcast_xpu);
  m.impl("allreduce_", allreduce_xpu);
  m.impl("allreduce_coalesced_", allreduce_coalesced_xpu);
  m.impl("allgather_", allgather_xpu);
  m.impl("_allgather_base_", allgather_base_xpu);
  m.impl("allgather_coalesced_", allgather_coalesced_xpu);
  m.impl("allgather_into_tensor_coalesced_", allgather_into_xpu);
  m.impl("reduce_scatter_", reduce_scatter_xpu);
  m.impl("_reduce_scatter_base_", reduce_scatter_base_xpu);
  m.impl("reduce_scatter_tensor_coalesced_", reduce_scatter_coalesced_xpu);
  m.impl("gather_", gather_xpu);
  m.impl("scatter_", scatter_xpu);
  m.impl("alltoall_", alltoall_xpu);
  m.impl("alltoall_base_", alltoall_base_xpu);
  m.impl("barrier", barrier_xpu);
  m.impl("check_for_nan", check_for_nan_xpu);
}
} // namespace c10d
