// The Python module simxpu._C: the torch._C._xpu_* functions of an XPU build, ProcessGroupXCCL, and what simxpu's own
// Python side needs.
#include "alias.h"
#include "devices.h"
#include "fallback.h"
#include "faults.h"
#include "hooks.h"
#include "memory.h"
#include "probe.h"
#include "process_group.h"
#include "random.h"
#include "streams.h"
#include "work.h"

#include <ATen/Context.h>
#include <pybind11/chrono.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;
using c10::DeviceIndex;
using c10::intrusive_ptr;
using namespace simxpu;

// ---- torch._C._xpu_*

static py::dict as_dict(const c10::CachingAllocator::StatArray& array) {
  auto one = [](const c10::CachingAllocator::Stat& s) {
    py::dict d;
    d["current"] = s.current;
    d["peak"] = s.peak;
    d["allocated"] = s.allocated;
    d["freed"] = s.freed;
    return d;
  };
  py::dict d;
  d["all"] = one(array[0]);
  d["small_pool"] = one(array[1]);
  d["large_pool"] = one(array[2]);
  return d;
}

static py::dict memory_stats(DeviceIndex index) {
  auto s = allocator().getDeviceStats(index);
  py::dict d;
  d["allocated_bytes"] = as_dict(s.allocated_bytes);
  d["reserved_bytes"] = as_dict(s.reserved_bytes);
  d["active_bytes"] = as_dict(s.active_bytes);
  d["requested_bytes"] = as_dict(s.requested_bytes);
  d["num_alloc_retries"] = s.num_alloc_retries;
  d["num_ooms"] = s.num_ooms;
  return d;
}

static void bind_torch_functions(py::module& m) {
  // devices
  m.def("_xpu_getDeviceCount", [] {
    torch::utils::register_fork_handler_for_device_init(kXPU);
    return static_cast<int>(visible_devices().size());
  });
  m.def("_xpu_getDevice", [] { return static_cast<int>(current_device()); });
  m.def("_xpu_setDevice", [](int i) { set_device(static_cast<DeviceIndex>(i)); });
  auto exchange = [](int i) -> int {
    if (i < 0)
      return -1;
    torch::utils::device_lazy_init(kXPU);
    return exchange_device(static_cast<DeviceIndex>(i));
  };
  m.def("_xpu_exchangeDevice", exchange);
  m.def("_xpu_maybeExchangeDevice", exchange);
  m.def("_xpu_getArchFlags", [] { return "pvc bmg"; });
  m.def("_xpu_isInBadFork", [] { return torch::utils::is_device_in_bad_fork(kXPU); });
  m.def("_xpu_canDeviceAccessPeer", [](int a, int b) {
    check_index(static_cast<DeviceIndex>(a));
    check_index(static_cast<DeviceIndex>(b));
    return true;
  });

  // streams
  m.def("_xpu_getCurrentStream", [](int i) {
    auto s = current_stream(static_cast<DeviceIndex>(i));
    return py::make_tuple(
        static_cast<int64_t>(s.id()), static_cast<int>(s.device_index()), static_cast<int64_t>(s.device_type()));
  });
  m.def("_xpu_getCurrentRawStream", [](int i) {
    auto s = current_stream(static_cast<DeviceIndex>(i));
    return static_cast<int64_t>(queue_handle(s.device_index(), s.id()));
  });
  m.def(
      "_xpu_setStream",
      [](int64_t stream_id, int64_t device_index, int64_t /*device_type*/) {
        const auto index = static_cast<DeviceIndex>(device_index);
        set_device(index);
        set_current_stream(c10::Stream(c10::Stream::UNSAFE, c10::Device(kXPU, index), stream_id));
      },
      py::arg("stream_id") = 0,
      py::arg("device_index") = 0,
      py::arg("device_type") = 0);
  m.def("_xpu_getStreamFromExternal", [](uintptr_t p, int i) {
    return py::make_tuple(static_cast<int64_t>(p & 0xff), i, static_cast<int64_t>(kXPU));
  });
  m.def("_xpu_isCurrentStreamCapturing", [] { return false; });
  m.def("_xpu_synchronize", [](int i) { synchronize_device(static_cast<DeviceIndex>(i)); });

  // memory
  m.def("_xpu_emptyCache", [] { allocator().emptyCache(); });
  m.def("_xpu_memoryStats", [](int i) { return memory_stats(static_cast<DeviceIndex>(i)); });
  m.def("_xpu_resetPeakMemoryStats", [](int i) { allocator().resetPeakStats(static_cast<DeviceIndex>(i)); });
  m.def("_xpu_resetAccumulatedMemoryStats", [](int i) {
    allocator().resetAccumulatedStats(static_cast<DeviceIndex>(i));
  });
  m.def("_xpu_getMemoryInfo", [](int i) { return memory_info(static_cast<DeviceIndex>(i)); });
  m.def("_xpu_getMemoryFraction", [](int i) { return memory_fraction(static_cast<DeviceIndex>(i)); });
  m.def("_xpu_setMemoryFraction", [](double f, int i) { set_memory_fraction(f, static_cast<DeviceIndex>(i)); });
  m.def("_xpu_memorySnapshot", [](const py::object&) {
    py::dict d;
    d["segments"] = py::list();
    d["device_traces"] = py::list();
    return d;
  });
  m.def("_xpu_recordMemoryHistory", [](const py::args&, const py::kwargs&) {});
}

// What an XPU build's module initialisation does; returns the default generators.
static py::tuple initialise() {
  TORCH_INTERNAL_ASSERT(!torch::utils::is_device_in_bad_fork(kXPU));
  torch::utils::register_fork_handler_for_device_init(kXPU);
  const auto count = visible_devices().size();
  at::globalContext().lazyInitDevice(kXPU);
  py::tuple generators(count);
  for (size_t i = 0; i < count; i++)
    generators[i] = py::reinterpret_steal<py::object>(
        THPGenerator_initDefaultGenerator(default_generator(static_cast<DeviceIndex>(i))));
  return generators;
}

// ---- simxpu's own

static void bind_faults(py::module& m) {
  py::class_<HangRule>(m, "HangRule")
      .def(
          py::init([](std::string collective, int64_t call, std::optional<int> rank) {
            return HangRule{std::move(collective), call, rank};
          }),
          py::arg("collective"),
          py::arg("call"),
          py::arg("rank") = py::none());
  py::class_<Faults, std::unique_ptr<Faults, py::nodelete>>(m, "Faults")
      .def_readwrite("avg_abort", &Faults::avg_abort)
      .def_readwrite("avg_double_divide", &Faults::avg_double_divide)
      .def_readwrite("minmax_sum", &Faults::minmax_sum)
      .def_readwrite("premul_refused", &Faults::premul_refused)
      .def_readwrite("mask_frozen", &Faults::mask_frozen)
      .def_readwrite("free_memory_zero", &Faults::free_memory_zero)
      .def_readwrite("free_memory_total", &Faults::free_memory_total)
      .def_readwrite("free_memory_raises", &Faults::free_memory_raises)
      .def_readwrite("no_splitting", &Faults::no_splitting)
      .def_readwrite("masked_group_hang", &Faults::masked_group_hang)
      .def_readwrite("nan_fill", &Faults::nan_fill)
      .def_readwrite("late_copy", &Faults::late_copy)
      .def_readwrite("device_lost", &Faults::device_lost)
      .def_readwrite("device_lost_rank", &Faults::device_lost_rank)
      .def_readwrite("hangs", &Faults::hangs)
      .def_readwrite("hang_limit", &Faults::hang_limit);
  m.attr("faults") = py::cast(&faults(), py::return_value_policy::reference);
}

static void bind_devices(py::module& m) {
  py::class_<VisibleDevice>(m, "VisibleDevice")
      .def(
          py::init([](std::string uuid, size_t total_memory, std::vector<std::string> pools) {
            return VisibleDevice{std::move(uuid), total_memory, std::move(pools)};
          }),
          py::arg("uuid"),
          py::arg("total_memory"),
          py::arg("pools"));
  m.def("set_resolver", [](py::function resolver) {
    auto* kept = new py::function(std::move(resolver)); // never released: may be called until the process ends
    set_resolver([kept] {
      py::gil_scoped_acquire gil;
      return (*kept)().cast<DeviceList>();
    });
  });
}

static intrusive_ptr<c10d::Backend> new_gloo(
    const intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout) {
  py::gil_scoped_acquire gil;
  auto c10d = py::module::import("torch._C._distributed_c10d");
  auto gloo = c10d.attr("ProcessGroupGloo")(c10d.attr("PrefixStore")("simxpu", store), rank, size, timeout);
  gloo.attr("_set_sequence_number_for_group")();
  return gloo.cast<intrusive_ptr<c10d::Backend>>();
}

static void bind_process_group(py::module& m) {
  auto c10d = py::module::import("torch._C._distributed_c10d"); // has the base classes
  auto backend = c10d.attr("Backend");
  using Options = ProcessGroupXCCL::Options;
  auto cls = py::class_<ProcessGroupXCCL, intrusive_ptr<ProcessGroupXCCL>>(m, "ProcessGroupXCCL", backend);
  py::class_<Options, intrusive_ptr<Options>>(cls, "Options", backend.attr("Options"))
      .def(py::init<bool>(), py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &Options::is_high_priority_stream);
  cls.def(
      py::init([](const intrusive_ptr<c10d::Store>& store, int rank, int size, intrusive_ptr<Options> options) {
        return c10::make_intrusive<ProcessGroupXCCL>(store, rank, size, std::move(options), new_gloo);
      }),
      py::arg("store"),
      py::arg("rank"),
      py::arg("size"),
      py::arg("options"));
  cls.def(
      py::init([](const intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
        auto options = c10::make_intrusive<Options>();
        options->timeout = timeout;
        return c10::make_intrusive<ProcessGroupXCCL>(store, rank, size, std::move(options), new_gloo);
      }),
      py::arg("store"),
      py::arg("rank"),
      py::arg("size"),
      py::arg("timeout") = kBackendDefaultTimeout);
  cls.def_property_readonly("options", [](ProcessGroupXCCL& p) { return p.getBackendOptions(); });
}

PYBIND11_MODULE(_C, m) {
  finish_registration();
  bind_torch_functions(m);
  bind_faults(m);
  bind_devices(m);
  bind_process_group(m);
  m.def("initialise", &initialise);
  m.def("event_elapsed_ms", [](uintptr_t start, uintptr_t end) { // addresses, as torch.Event.event_id gives them
    return elapsed_ms(reinterpret_cast<Event*>(start), reinterpret_cast<Event*>(end));
  });
  m.def("queue_handle", [](int i, int64_t id) { return queue_handle(static_cast<DeviceIndex>(i), id); });
  m.def("collective_counts", &collective_counts);
  m.def("reset_collective_counts", &reset_collective_counts);
  m.def("hooks_replaced_stub", &hooks_replaced_stub);
  m.def("routed_operators", &routed_operators);
  m.def("cpu_view", &cpu_view);
  py::module_::import("atexit").attr("register")(
      py::cpp_function(&leave_progress_threads, py::call_guard<py::gil_scoped_release>()));
}
