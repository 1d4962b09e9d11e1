"""Public reports of people who train on Intel GPUs, and what the shim does about each; docs/reports.md is made of it.

`python -m xpu_shim.doctor.reports` prints the page.
"""

from __future__ import annotations

from typing import NamedTuple


class Report(NamedTuple):
    """One report, or several of the same thing."""

    #: What people saw, in a few words.
    symptom: str
    links: tuple[str, ...]
    #: Ids of the patches that cure it, of the checks that find it, of the signatures that name it in a log.
    patches: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()
    #: Heading in docs/limits.md, for what a package in Python cannot do.
    limit: str = ""


def _gh(*paths: str) -> tuple[str, ...]:
    return tuple(path if path.startswith("https:") else f"https://github.com/{path}" for path in paths)


_VERL_XPU = "verl-project/verl/pull/7917"
_VERL_B60 = "kahlun/verl/pull/1"
_COPIES = "Copies to host memory"
_COLLECTIVES = "Collectives that hang"
_OTHER = "Other trainers and other rollout engines"
_DRIVER = "Defects of driver, kernel and compiler"
_IPC = "Device memory shared between processes"
_SDPA = "Attention with an explicit mask"
_HARDWARE = "Which cards"
_HOST = "Host memory of the size of the cards"

REPORTS: tuple[Report, ...] = (
    Report(
        "every rank on the same card",
        _gh(_VERL_XPU),
        ("verl.worker_pinning", "ray.intel_accelerator", "torch.init_process_group"),
        ("environment.ranks",),
    ),
    Report(
        "ZE_AFFINITY_MASK set after the first torch.xpu call has no effect",
        _gh("intel/torch-xpu-ops/issues/2089"),
        ("ray.intel_accelerator", "verl.worker_pinning"),
        ("torch.pyzes", "ray.dpctl"),
    ),
    Report(
        "Ray's accelerator ids and the worker's mask disagree",
        _gh("ray-project/ray/issues/66167"),
        ("ray.intel_accelerator",),
        (),
        ("ray_gpus",),
    ),
    Report(
        "ONEAPI_DEVICE_SELECTOR=0,1 from Ray: torch's import crashes",
        _gh("ray-project/ray/pull/64440"),
        ("torch.launch_environment", "ray.runtime_environment"),
        ("environment.selector", "ray.version"),
        ("selector",),
    ),
    Report(
        "Ray's mask comes after the driver has started",
        _gh("vllm-project/vllm/pull/58079", "vllm-project/vllm/pull/22413"),
        ("ray.intel_accelerator", "verl.noset_variables"),
        ("ray.noset", "ray.dpctl"),
    ),
    Report(
        "vLLM ignores device ids: every single-card worker on card 0",
        _gh("vllm-project/vllm/pull/56015"),
        ("verl.rollout_environment",),
        ("vllm.version",),
    ),
    Report(
        "trainer and server with one-card masks hang in the first broadcast",
        _gh("vllm-project/vllm/pull/53076"),
        ("ray.intel_accelerator", "verl.weight_sync_sender"),
        ("environment.one_card_masks",),
    ),
    Report(
        "a mask for each data-parallel rank breaks expert parallelism",
        _gh("vllm-project/vllm/pull/39856"),
        ("verl.rollout_environment",),
        ("environment.one_card_masks",),
    ),
    Report(
        "Docker forbids pidfd_getfd: two ranks hang, or /dev/dri/by-path is missing",
        _gh("uxlfoundation/oneCCL/issues/217"),
        (),
        ("container.pidfd", "container.by_path"),
        ("pidfd", "drm_directory"),
    ),
    Report(
        "weights sync, and the first generate waits for ever",
        _gh("huggingface/trl/pull/6787", "huggingface/trl/pull/6786"),
        ("verl.weight_sync_sender", "verl.weight_sync_receiver"),
        ("environment.one_card_masks",),
        ("device_uuids",),
    ),
    Report(
        "comm_dev_uuids is not sub-vector of node_dev_uuids, then zeMemOpenIpcHandle",
        _gh("SergiioB/intel-arc-pro-b70-inference-cookbook/issues/8"),
        (),
        ("environment.one_card_masks", "container.pidfd"),
        ("device_uuids", "ipc_handle"),
    ),
    Report(
        "host memory grows by the memory of all cards",
        _gh("vllm-project/vllm/issues/53822", "vllm-project/vllm/pull/56012", "vllm-project/vllm/pull/46226"),
        ("verl.rollout_executor",),
        ("memory.host_budget",),
        (),
        _HOST,
    ),
    Report(
        "the integrated GPU is used, or counted",
        _gh(
            "intel/intel-extension-for-pytorch/issues/536",
            "intel/AI-Playground/issues/79",
            "intel/AI-Playground/issues/249",
            "openvinotoolkit/openvino/pull/33066",
            "intel/torch-xpu-ops/pull/3946",
        ),
        ("ray.intel_accelerator",),
        ("hardware.integrated", "hardware.gpus"),
        ("integrated_device",),
    ),
    Report(
        "one of 16 devices busy",
        _gh("huggingface/transformers/issues/34881"),
        (),
        ("environment.ranks",),
    ),
    Report(
        "averages of few numbers are divided twice",
        _gh("intel/torch-xpu-ops/issues/3020"),
        ("torch.process_group_reductions", "torch.functional_reductions", "torch.fsdp2_sum"),
    ),
    Report(
        "average operation is not supported for the scheduler path",
        _gh("intel/torch-xpu-ops/issues/2361", "intel/torch-xpu-ops/pull/2691"),
        ("torch.fsdp2_sum", "torch.process_group_reductions", "torch.functional_reductions"),
        ("environment.scheduler_path",),
        ("avg_scheduler_path",),
    ),
    Report(
        "PREMUL_SUM with a gradient divide factor",
        _gh("pytorch/torchtitan/pull/2332"),
        ("torch.fsdp2_sum", "torch.process_group_reductions"),
        (),
        ("premul_sum",),
    ),
    Report(
        "a patch on all_reduce that never acts on composite groups",
        _gh(
            "verl-project/verl-hardware-plugin/blob/9fc0d31cde25faa9eb9a224be5c8a1613245c872/verl_hardware_plugin/"
            "accelerators/xpu/patches/reduce_avg_allreduce_patch.py",
            "verl-project/verl-hardware-plugin/pull/32",
        ),
        ("torch.process_group_reductions",),
    ),
    Report(
        "functional collectives average past every Python function",
        _gh("intel/torch-xpu-ops/issues/1508"),
        ("torch.functional_reductions",),
        (),
        ("avg_scheduler_path",),
    ),
    Report(
        "the average aborts once the run spans nodes",
        _gh("https://github.com/search?q=%22TCP-KVS%22+%22average+operation%22+ezpz&type=code"),
        ("torch.fsdp2_sum",),
        ("environment.scheduler_path",),
        ("avg_scheduler_path",),
    ),
    Report(
        "could not get local_idx/count from environment variables",
        _gh("huggingface/accelerate/issues/2340"),
        (),
        ("environment.launcher",),
        ("local_index",),
    ),
    Report(
        "did not find MPI-launcher specific variables",
        _gh("huggingface/accelerate/issues/3664", "intel/intel-extension-for-pytorch/issues/810"),
        (),
        ("environment.launcher",),
        ("launcher",),
    ),
    Report(
        "FSDP1's first broadcast hangs with torch 2.12",
        _gh("intel/torch-xpu-ops/issues/4238"),
        (),
        ("torch.fsdp1_broadcast",),
    ),
    Report(
        "ZE_RESULT_ERROR_UNKNOWN in a virtual machine",
        _gh("intel/torch-xpu-ops/issues/4241"),
        (),
        ("hardware.virtual_machine",),
        ("command_list",),
    ),
    Report(
        "CCL_ZE_IPC_EXCHANGE=sockets is ignored where pidfd is forbidden",
        _gh("uxlfoundation/oneCCL/issues/213"),
        (),
        ("container.pidfd",),
        ("pidfd",),
    ),
    Report(
        "GPU page fault and an endless wait after a peer's buffer moved",
        _gh("uxlfoundation/oneCCL/issues/212", "vllm-project/vllm/issues/41663", "vllm-project/vllm/pull/50887"),
        ("torch.launch_environment",),
        ("torch.ipc_handle_cache",),
        ("stale_ipc_handle", "shm_broadcast"),
    ),
    Report(
        "any all_reduce hangs on several Arc B cards with oneCCL 2022",
        _gh("uxlfoundation/oneCCL/issues/215", "vllm-project/vllm/issues/50545"),
        (),
        ("torch.oneccl_arc_b", "driver.gpu_hangs"),
        ("device_lost", "engine_reset"),
        _COLLECTIVES,
    ),
    Report(
        "zeMemOpenIpcHandle: ZE_RESULT_ERROR_INVALID_ARGUMENT in the first all_reduce",
        _gh("vllm-project/vllm/issues/48953", "intel/llm-scaler/issues/486"),
        (),
        ("driver.kernel", "driver.level_zero_driver", "torch.runtime_versions"),
        ("ipc_handle",),
    ),
    Report(
        "images for vLLM: hang while profiling, transport overridden, out of memory with four cards",
        _gh("intel/llm-scaler/issues/684", "intel/llm-scaler/issues/723", "intel/llm-scaler/issues/578"),
        (),
        ("environment.launcher", "driver.gpu_hangs"),
        ("device_lost", "xpu_oom"),
    ),
    Report(
        "its backend does not support splitting",
        _gh("pytorch/pytorch/issues/186548", "intel/torch-xpu-ops/issues/3233"),
        ("torch.init_process_group",),
        (),
        ("splitting",),
    ),
    Report(
        "xccl has no time limit",
        _gh("https://github.com/search?q=train_timeout_xpu_silent_noop&type=code"),
        (),
        (),
        ("set_timeout",),
        _COLLECTIVES,
    ),
    Report(
        "No backend type associated with device type xpu",
        _gh(
            "https://github.com/search?q=%22No+backend+type+associated+with+device+type+xpu%22+ezpz&type=code",
            "pytorch/pytorch/issues/142096",
            "intel/torch-xpu-ops/issues/2042",
            "intel/torch-xpu-ops/issues/1328",
            "intel/torch-xpu-ops/issues/986",
        ),
        ("torch.init_process_group",),
        ("torch.xccl", "torch.version"),
        ("no_backend",),
    ),
    Report(
        "expandable segments lose the device",
        _gh("intel/torch-xpu-ops/issues/4427"),
        ("verl.platform",),
        ("environment.expandable_segments",),
        ("device_lost",),
    ),
    Report(
        "torchtitan with vLLM: expandable segments, max_autotune, an early import of vLLM",
        _gh("pytorch/torchtitan/pull/3890"),
        (),
        ("environment.expandable_segments",),
        ("max_autotune",),
        _OTHER,
    ),
    Report(
        "oversubscription with more than two cards",
        _gh(_VERL_B60),
        ("verl.worker_pinning", "torch.init_process_group"),
        ("environment.ranks", "environment.scheduler_path"),
        ("oversubscription",),
    ),
    Report(
        "no free memory on an empty card",
        _gh(
            "vllm-project/vllm/pull/49482",
            "vllm-project/vllm/pull/53990",
            "vllm-project/vllm/pull/47820",
            "vllm-project/vllm-omni/pull/5330",
        ),
        ("vllm.memory_snapshot", "vllm.request_memory"),
        ("driver.free_memory",),
        ("false_oom",),
    ),
    Report(
        "free memory does not move",
        _gh("vllm-project/vllm/pull/47134", "vllm-project/vllm/pull/47016", "pytorch/pytorch/issues/161381"),
        ("vllm.memory_snapshot",),
        ("driver.free_memory",),
    ),
    Report(
        "all memory is reported free in spite of allocations",
        _gh("sgl-project/sglang-omni/pull/994", "sgl-project/sglang/pull/35474"),
        ("vllm.memory_snapshot",),
        ("driver.free_memory",),
    ),
    Report(
        "Error in memory profiling",
        _gh("vllm-project/vllm/pull/33358", "vllm-project/vllm/issues/56830"),
        ("vllm.memory_profiling", "vllm.sleep_assert"),
        ("vllm.version",),
        ("memory_profiling", "sleep_assert"),
    ),
    Report(
        "vLLM cannot sleep",
        _gh("vllm-project/vllm/pull/37149", "vllm-project/vllm/pull/23704", "intel/llm-scaler/issues/568"),
        ("verl.rollout_sleep",),
        ("vllm.sleep_mode",),
        ("sleep_mode",),
    ),
    Report(
        "SGLang's memory saver is missing",
        _gh("sgl-project/sglang/pull/29935"),
        (),
        ("vllm.memory_saver",),
        (),
        _OTHER,
    ),
    Report(
        "_share_fd_: only available on CPU",
        _gh(
            "intel/torch-xpu-ops/issues/1678",
            "intel/torch-xpu-ops/issues/5406",
            "intel/torch-xpu-ops/issues/4000",
            "pytorch/pytorch/issues/170636",
            "pytorch/pytorch/pull/191725",
        ),
        ("verl.weight_sync_sender", "verl.weight_sync_receiver", "verl.platform"),
        (),
        ("tensor_ipc",),
        _IPC,
    ),
    Report(
        "weight updates through tensors crash; a full /dev/shm kills",
        _gh("sgl-project/sglang/pull/40720", "sgl-project/sglang/pull/39891"),
        ("verl.weight_sync_sender",),
        ("memory.shm_size", "memory.shm_free"),
        ("tensor_ipc", "digest", "shared_memory"),
    ),
    Report(
        "the weight sync stalls at one byte offset",
        _gh(_VERL_XPU),
        ("verl.weight_sync_sender", "verl.weight_sync_receiver"),
        ("memory.shm_size",),
    ),
    Report(
        "torch.xpu has no ipc_collect",
        _gh("verl-project/verl/pull/7184"),
        ("torch.xpu_ipc_collect",),
        (),
        ("torch_xpu_attribute",),
    ),
    Report(
        "no device memory shared between trainer and server",
        _gh("MoonshotAI/checkpoint-engine/pull/96", "vllm-project/vllm/pull/56999"),
        ("verl.weight_sync_sender",),
        (),
        (),
        _IPC,
    ),
    Report(
        "OpenRLHF's list for Intel GPUs",
        _gh("OpenRLHF/OpenRLHF/issues/1303"),
        ("ray.runtime_environment",),
        (),
        (),
        _OTHER,
    ),
    Report(
        "oneCCL takes a container's bridge; resets with critic and rollout on one card",
        _gh("https://github.com/search?q=%22XCCL+%2F+oneCCL+Known+Issues%22&type=code"),
        (),
        ("container.network", "driver.gpu_hangs"),
        ("engine_reset",),
    ),
    Report(
        "Ray kills workers at the memory peak",
        _gh(_VERL_B60),
        (),
        ("memory.ray_threshold", "memory.host_budget", "ray.memory_monitor"),
        ("ray_memory_monitor",),
        _HOST,
    ),
    Report(
        "could not create a primitive, with ONEAPI_DEVICE_SELECTOR",
        _gh(_VERL_B60),
        ("torch.launch_environment", "ray.runtime_environment", "verl.rollout_environment"),
        ("environment.selector", "driver.opencl"),
        ("primitive", "triton_drivers"),
    ),
    Report(
        "could not create a primitive, with driver 26.14 on Arc A",
        _gh("intel/compute-runtime/issues/963"),
        (),
        ("driver.arc_a_regression",),
        ("primitive", "opencl_memory"),
    ),
    Report(
        "could not create a primitive on Windows and with old drivers",
        _gh("intel/intel-extension-for-pytorch/issues/508", "intel/ipex-llm/issues/11305"),
        (),
        ("hardware.integrated", "driver.arc_a_regression"),
        ("primitive",),
        _DRIVER,
    ),
    Report(
        "sdpa with a mask takes seven times the memory",
        _gh(
            "intel/torch-xpu-ops/issues/2390",
            "intel/torch-xpu-ops/issues/2232",
            "intel/torch-xpu-ops/issues/1749",
            "intel/torch-xpu-ops/issues/2489",
            "pytorch/pytorch/issues/135085",
        ),
        (),
        ("verl.attention_kernels",),
        (),
        _SDPA,
    ),
    Report(
        "flash_attention_2 needs a kernel from the hub",
        _gh(
            "huggingface/transformers/pull/41956",
            "huggingface/transformers/issues/45399",
            "huggingface/transformers/pull/48252",
            "microsoft/VibeVoice/pull/209",
        ),
        ("verl.attention_default", "verl.attention_legacy_workers"),
        ("verl.attention_kernels",),
        ("flash_attn",),
    ),
    Report(
        "verl imports flash_attn, or pad_input is unbound",
        _gh("verl-project/verl/pull/7033", _VERL_XPU),
        ("verl.padding_attention_utils", "verl.rmpad_log_probs", "verl.critic_attention"),
        ("verl.flash_attn",),
        ("flash_attn",),
    ),
    Report(
        "FSDP1 offload: AssertionError on data_ptr()",
        _gh(
            "pytorch/pytorch/pull/135567",
            "pytorch/pytorch/issues/135550",
            "kahlun/verl/commit/51ad12a15d0ec635367745690156a2cb73045934",
        ),
        ("verl.offload_assertions",),
        ("torch.version",),
        ("flat_param",),
    ),
    Report(
        "copies to host memory are stale",
        _gh(
            "intel/torch-xpu-ops/pull/4349",
            "pytorch/pytorch/pull/189980",
            "pytorch/pytorch/pull/186224",
            "intel/torch-xpu-ops/issues/3861",
        ),
        (),
        ("torch.host_copies",),
        (),
        _COPIES,
    ),
    Report(
        "TensorDict on the CPU holds random values",
        _gh("pytorch/tensordict/pull/1425", "pytorch/tensordict/issues/725", "pytorch/tensordict/pull/731"),
        ("tensordict.synchronize",),
    ),
    Report(
        "libur_loader, libsycl: another oneAPI's libraries",
        _gh(
            "pytorch/pytorch/issues/149953",
            "pytorch/pytorch/issues/180948",
            "intel/intel-xpu-backend-for-triton/issues/3095",
        ),
        (),
        ("driver.setvars", "driver.two_runtimes", "torch.imports", "torch.triton"),
        ("mixed_oneapi",),
    ),
    Report(
        "torch counts no device although Level Zero sees it",
        _gh("vllm-project/vllm/pull/48634"),
        (),
        ("torch.device_count",),
        ("no_device",),
    ),
    Report(
        "XPU device count is zero; works only with sudo",
        _gh(
            "intel/llm-scaler/issues/370",
            "open-edge-platform/geti/issues/5387",
            "open-edge-platform/physical-ai-studio/issues/417",
        ),
        (),
        ("hardware.permissions", "hardware.device_files"),
        ("no_device",),
    ),
    Report(
        "a CUDA wheel of torch on an Intel machine",
        _gh("pytorch/pytorch/issues/189811", "vllm-project/vllm/issues/39170"),
        (),
        ("torch.build", "vllm.build"),
        ("wrong_torch",),
    ),
    Report(
        "intel_extension_for_pytorch of another release",
        _gh("intel/intel-extension-for-pytorch/issues/867", "intel/intel-extension-for-pytorch/issues/865"),
        (),
        ("torch.ipex",),
        ("ipex",),
    ),
    Report(
        "module 'torch.xpu' has no attribute ...",
        _gh("huggingface/accelerate/pull/3772", "pytorch/pytorch/issues/127929", "pytorch/pytorch/pull/165510"),
        ("torch.xpu_ipc_collect",),
        ("torch.version",),
        ("torch_xpu_attribute",),
    ),
    Report(
        "set_numa_affinity knows NVIDIA only",
        _gh("verl-project/verl/pull/5627", "verl-project/verl/pull/3471"),
        ("verl.numa",),
        ("hardware.numa",),
        ("numa_pynvml",),
    ),
    Report(
        "nvtx hides the profiler's markers; vtune is dropped",
        _gh(_VERL_XPU, "verl-project/verl-hardware-plugin/pull/22"),
        ("verl.profiler_markers", "verl.profiler_tools", "verl.profiler_rollout"),
        ("verl.nvtx",),
    ),
    Report(
        "torch's profiler has no XPU activity",
        _gh(
            "pytorch/pytorch/issues/153632",
            "intel/torch-xpu-ops/issues/4353",
            "intel/torch-xpu-ops/issues/3985",
        ),
        ("verl.profiler_torch",),
        (),
        ("kineto",),
        _DRIVER,
    ),
    Report(
        "Triton: DEVICE_LOST, compiler errors, a patched triton.language",
        _gh(
            "intel/intel-xpu-backend-for-triton/issues/5999",
            "intel/intel-xpu-backend-for-triton/issues/7581",
            "intel/intel-xpu-backend-for-triton/issues/7355",
        ),
        (),
        ("driver.gpu_hangs",),
        ("device_lost", "triton_jit"),
        _DRIVER,
    ),
    Report(
        "Intel GPUs in verl itself",
        _gh(
            "verl-project/verl/pull/7371",
            "verl-project/verl/issues/6403",
            "verl-project/verl/pull/6119",
            "verl-project/verl/pull/6607",
            "verl-project/verl/pull/5943",
        ),
        ("verl.platform", "verl.engines", "verl.device_functions", "verl.placement"),
        ("python.hook", "verl.version"),
        ("no_platform",),
    ),
    Report(
        "which GPUs work?",
        _gh("THUDM/slime/issues/388", "pytorch/pytorch/issues/138347"),
        (),
        ("hardware.gpus",),
        (),
        _HARDWARE,
    ),
)


def anchor(heading: str) -> str:
    """The fragment a heading has in rendered Markdown."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def _short(link: str) -> str:
    parts = link.removeprefix("https://github.com/").split("/")
    if parts[0].startswith("search"):
        return "code search"
    if "blob" in parts:
        return f"{parts[1]} {parts[-1]}"
    return f"{parts[1]}@{parts[3][:8]}" if parts[2] == "commit" else f"{parts[1]}#{parts[3]}"


def render() -> str:
    """The text of docs/reports.md."""
    lines = [
        "# Public reports",
        "",
        "Generated by `python -m xpu_shim.doctor.reports` from the table in `xpu_shim/doctor/reports.py`; do not edit.",
        "",
        "What people who train on Intel GPUs have reported, and what this package does about it: a patch cures it, "
        "`xpu-shim doctor` finds it on the machine, `xpu-shim doctor --log` names it in a log, or "
        "[limits.md](limits.md) "
        "says why a package in Python cannot help. Cures were tried on the simulated device, not on cards.",
        "",
        "| what people saw | reports | cured by | found by | in a log | limit |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for report in REPORTS:
        links = ", ".join(f"[{_short(link)}]({link})" for link in report.links)
        patches = ", ".join(f"[{name}](patches.md#{name.replace('.', '')})" for name in report.patches)
        cells = [
            report.symptom,
            links,
            patches or "-",
            ", ".join(f"`{name}`" for name in report.checks) or "-",
            ", ".join(f"`{name}`" for name in report.signatures) or "-",
            f"[{report.limit}](limits.md#{anchor(report.limit)})" if report.limit else "-",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    cured = sum(bool(report.patches) for report in REPORTS)
    found = sum(not report.patches and bool(report.checks) for report in REPORTS)
    lines += ["", f"{len(REPORTS)} rows: {cured} with a patch, {found} more with a check, the rest with a limit."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(render())
