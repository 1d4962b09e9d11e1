// ProcessGroupXCCL: the c10d backend of XPU tensors, over gloo.
#pragma once

#include "work.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace simxpu {

class ProcessGroupXCCL final : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(bool high_priority = false)
        : c10d::Backend::Options("xccl"), is_high_priority_stream(high_priority) {}
    bool is_high_priority_stream;
  };
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  //: Makes the gloo backend of a group; gloo's class is reachable through Python only.
  using GlooFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
      const c10::intrusive_ptr<c10d::Store>&, int rank, int size, std::chrono::milliseconds timeout)>;

  ProcessGroupXCCL(
      c10::intrusive_ptr<c10d::Store> store,
      int rank,
      int size,
      c10::intrusive_ptr<Options> options,
      GlooFactory make_gloo);

  const std::string getBackendName() const override {
    return "xccl";
  }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return options_;
  }
  bool supportsCoalescing() const override {
    return true;
  }
  bool supportsSplitting() const override;
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void abort() override;
  void shutdown() override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override {
    return sequence_;
  }

  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override;
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkPtr allgather(TensorLists&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_coalesced(TensorLists&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr gather(TensorLists&, Tensors&, const c10d::GatherOptions&) override;
  WorkPtr scatter(Tensors&, TensorLists&, const c10d::ScatterOptions&) override;
  WorkPtr reduce_scatter(Tensors&, TensorLists&, const c10d::ReduceScatterOptions&) override;
  WorkPtr _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors&, Tensors&, const c10d::ReduceScatterOptions&) override;
  WorkPtr alltoall_base(
      at::Tensor&,
      at::Tensor&,
      std::vector<int64_t>&,
      std::vector<int64_t>&,
      const c10d::AllToAllOptions&) override;
  WorkPtr alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;
  WorkPtr send(Tensors&, int destination, int tag) override;
  WorkPtr recv(Tensors&, int source, int tag) override;
  WorkPtr recvAnysource(Tensors&, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions&) override;

 private:
  // What a reduction becomes on gloo.
  struct Reduction {
    c10d::ReduceOp op;
    double scale_input = 1; // PREMUL_SUM
    bool average = false;
  };

  // Every collective starts here: counts it, and applies the faults that concern its start.  Returns a work that never
  // ends if this call is to hang.
  WorkPtr begin(const char* name, c10d::OpType type, const c10d::ReduceOp* op, const at::Tensor* tensor);
  Reduction translate(const c10d::ReduceOp& op) const;
  std::function<void()> epilogue(const Reduction& reduction, Tensors cpu_outputs) const;
  WorkPtr launch(
      c10d::OpType type,
      std::vector<WorkPtr> inner,
      Tensors outputs,
      bool asynchronous = true,
      std::function<void()> epilogue = {});
  WorkPtr remember(WorkPtr work); // for coalescing
  bool devices_hidden_from_each_other(const at::Tensor* tensor);

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Options> options_;
  GlooFactory make_gloo_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  Progress progress_;
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
  uint64_t sequence_ = 0;
  std::optional<bool> hidden_; // masked_group_hang: found out at the first collective
};

} // namespace simxpu
