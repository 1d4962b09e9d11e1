# ruff: noqa: E501
"""`--log`: the words of every public report are named, and logs about something else are left alone."""

from __future__ import annotations

import pytest
from other_logs import OTHER

from xpu_shim.doctor.log import scan, scan_file
from xpu_shim.doctor.reports import REPORTS
from xpu_shim.doctor.signatures import OTHER_ONECCL, SIGNATURES, find

#: What was in the reports, and the signature that must name it.
TEXTS = [
    ("avg_scheduler_path", "RuntimeError: oneCCL: coll_param.cpp:455 validate: EXCEPTION: average operation is not supported for the scheduler path"),
    ("avg_scheduler_path", "[rank3]: RuntimeError: oneCCL: coll_param.cpp:491 validate: EXCEPTION: average operation is not supported for the scheduler path"),
    ("premul_sum", "RuntimeError: Cannot use ReduceOp.PREMUL_SUM with Gloo"),
    ("premul_sum", "ReduceOp.PREMUL_SUM incompatible with XPU"),
    ("splitting", "RuntimeError: No backend for the parent process group or its backend does not support splitting"),
    ("no_backend", "RuntimeError: No backend type associated with device type xpu"),
    ("no_backend", "NotImplementedError: c10d::allgather_ not implemented for XPU"),
    ("oversubscription", "oneCCL: selection.cpp:361 EXCEPTION: oversubscription case is detected: OneCCL expects max one rank per device"),
    ("device_uuids", "2026:08:29 |CCL_WARN| comm_dev_uuids is not sub-vector of node_dev_uuids, comm_dev_uuids size 2, node_dev_uuids size 1"),
    ("device_uuids", "comm_dev_uuids size 2 vs node_dev_uuids size 1 ... narrow device affinity mask"),
    ("ipc_handle", "oneCCL: ze_call.cpp:28 do_call: EXCEPTION: ze error at zeMemOpenIpcHandle, code: ZE_RESULT_ERROR_INVALID_ARGUMENT"),
    ("pidfd", "|CCL_WARN| pidfd is not supported, fallbacks to drmfd exchange mode"),
    ("drm_directory", "oneCCL: ze_fd_manager.cpp:144 init_device_fds: EXCEPTION: opendir failed: could not open device directory"),
    ("local_index", "oneCCL: global.cpp:166 EXCEPTION: could not get local_idx/count from environment variables, trying to get them from ATL"),
    ("launcher", "|CCL_WARN| did not find MPI-launcher specific variables, switch to ATL/OFI, to force enable ATL/MPI set CCL_ATL_TRANSPORT=mpi"),
    ("launcher", "|CCL_INFO| process launcher: hydra, local_proc_idx: -1, local_proc_count: -1"),
    ("command_list", "ze error at zeCommandQueueExecuteCommandLists, code: ZE_RESULT_ERROR_UNKNOWN"),
    ("stale_ipc_handle", "#4 0x00007f ccl ze_base_entry::is_event_completed(_ze_event_handle_t*)"),
    ("stale_ipc_handle", "Segmentation fault from GPU at 0xff00ffff2c000000, ctx_id: 1 (CCS) type: 0 (NotPresent)"),
    ("shm_broadcast", "INFO shm_broadcast.py:466 No available shared memory broadcast block found in 60 seconds."),
    ("device_lost", "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
    ("device_lost", "terminate called: ZE_RESULT_ERROR_DEVICE_LOST"),
    ("engine_reset", "[ 8121.4] xe 0000:03:00.0: [drm] Tile0: GT0: Engine reset: engine_class=ccs, logical_mask: 0x1"),
    ("set_timeout", "UserWarning: Set timeout is now only supported for either nccl or gloo."),
    ("false_oom", "ValueError: Free memory on device xpu:0 (0.0/22.71 GiB) on startup is less than desired GPU memory utilization (0.9, 20.44 GiB)."),
    ("memory_short", "ValueError: Free memory on device xpu:1 (9.3/22.71 GiB) on startup is less than desired GPU memory utilization (0.9, 20.44 GiB)."),
    ("xpu_oom", "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 22.71 GiB."),
    ("xpu_oom", "`-tp 4`: XPU OOM"),
    ("memory_profiling", "AssertionError: Error in memory profiling. Initial free memory 30.3 GiB, current free memory 30.3 GiB."),
    ("sleep_assert", "AssertionError: Memory usage increased after sleeping."),
    ("sleep_mode", "ValueError: Sleep mode is not supported on current platform."),
    ("shared_memory", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."),
    ("shared_memory", "(WorkerDict pid=811) *** SIGBUS received at time=1758 on cpu 3 ***"),
    ("shared_memory", "/bin/sh: line 1: 4711 Bus error               (core dumped) python -m verl.trainer.main_ppo"),
    ("ray_memory_monitor", "Memory on the node (IP: 10.0.0.2) was 59.8GB / 62.7GB (0.953), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 1) because it was the most recently scheduled task"),
    ("ray_memory_monitor", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    ("tensor_ipc", "RuntimeError: _share_fd_: only available on CPU"),
    ("digest", "multiprocessing.context.AuthenticationError: digest received was wrong"),
    ("torch_xpu_attribute", "AttributeError: module 'torch.xpu' has no attribute 'ipc_collect'"),
    ("torch_xpu_attribute", "AttributeError: module 'torch.xpu' has no attribute 'memory_allocated'"),
    ("primitive", "RuntimeError: could not create a primitive"),
    ("opencl_memory", "onednn_verbose,v1,common,error,ocl,errcode -6,CL_OUT_OF_HOST_MEMORY,src/gpu/intel/ocl/engine.cpp:183"),
    ("triton_drivers", "RuntimeError: 0 active drivers ([]). There should only be one."),
    ("triton_jit", "ValueError: Did you forget to add @triton.jit ? (`_semantic` argument must be provided outside of JIT functions.)"),
    ("selector", "ONEAPI_DEVICE_SELECTOR parsing error. Backend is required but missing."),
    ("integrated_device", "RuntimeError: Native API failed. Native API returns: -33 (PI_ERROR_INVALID_DEVICE)"),
    ("max_autotune", "RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)"),
    ("flat_param", "    assert handle.flat_param.data.data_ptr() == handle.flat_param._local_shard.data_ptr()"),
    ("flash_attn", "ModuleNotFoundError: No module named 'flash_attn'"),
    ("flash_attn", "UnboundLocalError: cannot access local variable 'pad_input' where it is not associated with a value"),
    ("flash_attn", "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error"),
    ("kineto", "[W] Fail to enable Kineto Profiler on XPU due to error code: 2"),
    ("kineto", "PTI_ERROR_NOT_IMPLEMENTED"),
    ("mixed_oneapi", "ImportError: /opt/intel/oneapi/compiler/2025.0/lib/libur_loader.so.0: version `LIBUR_LOADER_0.10' not found (required by x)"),
    ("mixed_oneapi", "ImportError: libsycl.so.7: cannot open shared object file: No such file or directory"),
    ("mixed_oneapi", "RuntimeError: UR error"),
    ("no_device", "RuntimeError: XPU device count is zero!"),
    ("no_device", "RuntimeError: No XPU devices are available."),
    ("wrong_torch", "RuntimeError: PyTorch was compiled without CUDA support"),
    ("wrong_torch", "AssertionError: Torch not compiled with XPU enabled"),
    ("ipex", "ERROR! Intel® Extension for PyTorch* needs to work with PyTorch 2.8.*, but PyTorch 2.13.0+xpu is found."),
    ("no_platform", "AssertionError: Unknown device: cpu for model_type: language_model and backend: fsdp"),
    ("no_platform", "KeyError: 'NPU'"),
    ("ray_gpus", "ValueError: Total available GPUs 0 is less than total desired GPUs 4"),
    ("micro_batches", "ValueError: max_group_token_len=8192 > max_token_len=4096"),
    ("transfer_queue", "ModuleNotFoundError: No module named 'transfer_queue'"),
    ("vllm_kernels", "ModuleNotFoundError: No module named 'vllm_xpu_kernels'"),
    ("numa_pynvml", "Warning: pynvml not available, skipping NUMA affinity setup"),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "text"), TEXTS, ids=[f"{number}-{case[0]}" for number, case in enumerate(TEXTS)])
def test_the_words_of_a_report_are_named(expected, text):
    log = ["step 1: loss 0.3", f"(WorkerDict pid=4711) {text}", "more text"]
    hits = scan(log)
    assert expected in [hit.signature.id for hit in hits]
    hit = next(hit for hit in hits if hit.signature.id == expected)
    assert hit.line == 2
    assert hit.signature.cause
    assert hit.signature.cure
    assert hit.signature.links[0].startswith("https://")


def test_every_signature_has_a_text():
    assert {case[0] for case in TEXTS} == {item.id for item in SIGNATURES}


def test_every_report_with_words_is_named():
    """Each row of the table that claims a signature has a text that leads there."""
    named = {case[0] for case in TEXTS}
    for report in REPORTS:
        assert set(report.signatures) <= named


@pytest.mark.parametrize("name", OTHER)
def test_a_log_about_something_else_is_left_alone(name):
    assert scan(OTHER[name].splitlines()) == []


def test_there_are_twenty_other_logs():
    assert len(OTHER) >= 20
    assert all(len(text.splitlines()) >= 5 for text in OTHER.values())


def test_an_unknown_error_of_oneccl_is_named_as_such():
    assert [item.id for item in find("oneCCL: atl_ofi.cpp:12 init: EXCEPTION: something new")] == [OTHER_ONECCL.id]


def test_a_shortage_is_named_in_the_words_of_the_shim_too():
    """Where the shim is on, vLLM's refusal has other words."""
    from xpu_shim.rollout.shortage import message

    for free in (0, 9 << 30):
        text = message("xpu:0", free, 24 << 30, 0.9, elsewhere=0, own=1 << 30, everybody=())
        assert [item.id for item in find(f"ValueError: {text}")] == ["memory_short"]


def test_causes_come_before_consequences():
    log = [
        "No available shared memory broadcast block found in 60 seconds.",
        "No available shared memory broadcast block found in 60 seconds.",
        "Segmentation fault from GPU at 0xff00",
    ]
    hits = scan(log)
    assert [(hit.signature.id, hit.line, hit.count) for hit in hits] == [
        ("stale_ipc_handle", 3, 1),
        ("shm_broadcast", 1, 2),
    ]


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\x00" * 1000 + b"\nRuntimeError: XPU device count is zero!\n")
    assert [hit.signature.id for hit in scan_file(str(path))] == ["no_device"]


def test_a_progress_bar_of_megabytes_without_a_line_feed():
    assert scan(["\rloading 1%" * 1_000_000]) == []
