"""Known failures by the words they leave in a log: cause, cure, public reports.

One table for `xpu-shim doctor --log` and for the notes on exceptions. Standard library only; patterns are compiled on
first use.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

_GITHUB = "https://github.com/"


class Signature(NamedTuple):
    """One known failure."""

    id: str
    #: Regular expression that one line of the log matches.
    pattern: str
    cause: str
    #: What to do, as a command where there is one.
    cure: str
    links: tuple[str, ...]
    #: Whether another failure usually comes before it and is the one to look for.
    consequence: bool = False


def _gh(*paths: str) -> tuple[str, ...]:
    return tuple(path if path.startswith("https:") else _GITHUB + path for path in paths)


SIGNATURES: tuple[Signature, ...] = (
    # -- collectives -----------------------------------------------------------------------------------------------
    Signature(
        "avg_scheduler_path",
        r"average operation is not supported for the scheduler path",
        "oneCCL cannot average on its scheduler path, which CCL_TOPO_ALGO=0, CCL_ALLREDUCE=ring, missing peer access, "
        "ranks that share a card, several nodes and some dtypes lead to.",
        "run with the shim (`xpu-shim run -- <command>` shows torch.fsdp2_sum and "
        "torch.process_group_reductions applied); "
        "unset XPU_SHIM_REDUCE_AVG CCL_TOPO_ALGO; check that ranks sit on distinct cards",
        _gh("intel/torch-xpu-ops/issues/2361", "intel/torch-xpu-ops/pull/2691", "intel/torch-xpu-ops/issues/1508"),
    ),
    Signature(
        "premul_sum",
        r"(?i)cannot use ReduceOp\.PREMUL_SUM|PREMUL_SUM\W{0,3}.{0,30}(incompatible|not supported|unsupported)",
        "FSDP2 with a gradient divide factor asks for PREMUL_SUM, which this backend does not have.",
        "run with the shim (patch torch.fsdp2_sum makes it a SUM and a division)",
        _gh("pytorch/torchtitan/pull/2332"),
    ),
    Signature(
        "splitting",
        r"backend does not support splitting",
        "A DeviceMesh splits the process group because `device_id` was given, and xccl cannot split.",
        "run with the shim (patch torch.init_process_group drops device_id), or drop device_id= from "
        "init_process_group",
        _gh("pytorch/pytorch/issues/186548", "intel/torch-xpu-ops/issues/3233"),
    ),
    Signature(
        "no_backend",
        r"No backend type associated with device type (xpu|cpu)|c10d::\w+'?\W{0,2}(is )?not implemented for '?XPU",
        "The process group has a backend for one of cpu and xpu only, and a tensor of the other came.",
        "run with the shim, or init_process_group('cpu:gloo,xpu:xccl'); torch before 2.8 has no xccl",
        _gh(
            "pytorch/pytorch/issues/142096",
            "intel/torch-xpu-ops/issues/2042",
            "intel/torch-xpu-ops/issues/1328",
            "intel/torch-xpu-ops/issues/986",
            "https://github.com/search?q=%22No+backend+type+associated+with+device+type+xpu%22+ezpz&type=code",
        ),
    ),
    Signature(
        "oversubscription",
        r"oversubscription case is detected",
        "Two ranks sit on one card: a mask was frozen or renumbered, or there are more ranks than cards.",
        "xpu-shim doctor --group environment   # then one rank a card; not CCL_TOPO_ALGO=0, which makes averages abort",
        _gh("kahlun/verl/pull/1"),
    ),
    Signature(
        "device_uuids",
        r"comm_dev_uuids|narrow device affinity mask",
        "Each process sees its own card only, and oneCCL needs the cards of the communicator visible in "
        "all of them: the "
        "first collective fails or never ends.",
        "unset ZE_AFFINITY_MASK XPU_SHIM_VISIBILITY   # all cards visible, each rank selects its own; the "
        "shim does that",
        _gh(
            "uxlfoundation/oneCCL/issues/217",
            "huggingface/trl/pull/6787",
            "huggingface/trl/pull/6786",
            "SergiioB/intel-arc-pro-b70-inference-cookbook/issues/8",
            "vllm-project/vllm/pull/53076",
        ),
    ),
    Signature(
        "ipc_handle",
        r"zeMem(Open|Get)IpcHandle",
        "A memory handle of another rank cannot be opened: one-card masks, a container that forbids "
        "pidfd_getfd, or driver, "
        "kernel and oneCCL that do not fit.",
        "xpu-shim doctor --group container --group driver --group environment",
        _gh("vllm-project/vllm/issues/48953", "intel/llm-scaler/issues/486"),
    ),
    Signature(
        "pidfd",
        r"pidfd is not supported",
        "The container's seccomp profile forbids pidfd_getfd; oneCCL falls back to drmfd, which hangs or "
        "aborts, even with "
        "CCL_ZE_IPC_EXCHANGE=sockets.",
        "docker run --cap-add SYS_PTRACE --security-opt seccomp=unconfined -v /dev/dri/by-path:/dev/dri/by-path ...",
        _gh("uxlfoundation/oneCCL/issues/217", "uxlfoundation/oneCCL/issues/213"),
    ),
    Signature(
        "drm_directory",
        r"init_device_fds.{0,60}opendir failed|could not open device directory",
        "/dev/dri/by-path is missing in the container.",
        "docker run --device /dev/dri -v /dev/dri/by-path:/dev/dri/by-path ...",
        _gh("uxlfoundation/oneCCL/issues/217"),
    ),
    Signature(
        "local_index",
        r"could not get local_idx/count from environment",
        "oneCCL takes it that an MPI launcher started the ranks.",
        "export CCL_PROCESS_LAUNCHER=none CCL_LOCAL_RANK=$LOCAL_RANK CCL_LOCAL_SIZE=$LOCAL_WORLD_SIZE   # in each rank",
        _gh("huggingface/accelerate/issues/2340"),
    ),
    Signature(
        "launcher",
        r"did not find MPI-launcher specific variables|process launcher: hydra, local_proc_idx: -1",
        "No MPI launcher: oneCCL changes to its OFI transport, and CCL_ATL_TRANSPORT=mpi has no effect. Harmless by "
        "itself; look at what follows.",
        "unset CCL_ATL_TRANSPORT CCL_PROCESS_LAUNCHER   # or start the ranks with mpirun",
        _gh(
            "huggingface/accelerate/issues/3664",
            "intel/intel-extension-for-pytorch/issues/810",
            "intel/llm-scaler/issues/723",
        ),
        consequence=True,
    ),
    Signature(
        "command_list",
        r"zeCommandQueueExecuteCommandLists.{0,60}ZE_RESULT_ERROR_UNKNOWN",
        "A copy to another card failed: peer access in a virtual machine is the known case.",
        "export CCL_TOPO_P2P_ACCESS=0",
        _gh("intel/torch-xpu-ops/issues/4241"),
    ),
    Signature(
        "stale_ipc_handle",
        r"ze_base_entry::is_event_completed|Segmentation fault from GPU at|(?i:GPU page fault)",
        "oneCCL used a cached handle of memory that its owner had freed and allocated again (oneCCL 2021.17, Arc B).",
        "export CCL_ZE_CACHE_OPEN_IPC_HANDLES=0   # the shim sets it where that oneCCL is used",
        _gh("uxlfoundation/oneCCL/issues/212", "vllm-project/vllm/issues/41663", "vllm-project/vllm/pull/50887"),
    ),
    Signature(
        "device_lost",
        r"(UR_RESULT|ZE_RESULT|PI)_ERROR_DEVICE_LOST|\bDEVICE_LOST\b",
        "The kernel reset the card. Known causes: oneCCL 2022.0 and 2022.1 on several Arc B cards, "
        "expandable segments, "
        "driver defects.",
        "sudo dmesg | grep -E 'xe|i915' | tail; export CCL_ALLREDUCE=ring; unset PYTORCH_ALLOC_CONF "
        "PYTORCH_CUDA_ALLOC_CONF",
        _gh(
            "uxlfoundation/oneCCL/issues/215",
            "vllm-project/vllm/issues/50545",
            "intel/torch-xpu-ops/issues/4427",
            "intel/llm-scaler/issues/684",
            "intel/intel-xpu-backend-for-triton/issues/5999",
        ),
    ),
    Signature(
        "engine_reset",
        r"(?i)\b(xe|i915)\b.*(engine reset|timedout job|gpu hang|guc.{0,20}(timeout|timed out|reset))|"
        r"\bGuC timeouts?\b",
        "The kernel driver found the card hanging and reset it.",
        "xpu-shim doctor --group driver --group torch   # then see device_lost",
        _gh(
            "uxlfoundation/oneCCL/issues/215",
            "https://github.com/search?q=%22XCCL+%2F+oneCCL+Known+Issues%22&type=code",
        ),
    ),
    Signature(
        "shm_broadcast",
        r"No available shared memory broadcast block",
        "A vLLM worker stopped answering: it hangs in a collective or died.",
        "look further up for the first error; py-spy dump --pid <worker>",
        _gh("vllm-project/vllm/issues/41663", "uxlfoundation/oneCCL/issues/212"),
        consequence=True,
    ),
    Signature(
        "set_timeout",
        r"Set timeout is now only supported for either nccl or gloo",
        "torch cannot give xccl a time limit: a collective that hangs hangs for ever.",
        "py-spy dump --pid <rank>   # finds which rank is missing; use torchrun --max-restarts and a job time limit",
        ("https://github.com/search?q=train_timeout_xpu_silent_noop&type=code",),
    ),
    # -- memory ----------------------------------------------------------------------------------------------------
    Signature(
        "false_oom",
        r"Free memory on device.{0,20}\(0(\.0+)? ?/ ?[\d.]+ ?GiB\)",
        "The driver reports no free memory on an empty card (compute-runtime before 26.18, or Data Center GPU Max).",
        "sudo apt install --only-upgrade libze-intel-gpu1 intel-opencl-icd   # 26.18; the shim reads it another way",
        _gh(
            "vllm-project/vllm/pull/49482",
            "vllm-project/vllm/pull/53990",
            "vllm-project/vllm/pull/47820",
            "vllm-project/vllm-omni/pull/5330",
        ),
    ),
    Signature(
        "memory_short",
        r"Free memory on device \(?xpu:\d+\)? ?\(((?!0(\.0+)?/)[\d.]+/[\d.]+ GiB|[\d.]+ GiB of [\d.]+ GiB)\)",
        "Something else holds memory on that card: the trainer, another job, or several ranks that share it.",
        "xpu-smi ps   # then lower actor_rollout_ref.rollout.gpu_memory_utilization",
        _gh("vllm-project/vllm/pull/49482"),
    ),
    Signature(
        "xpu_oom",
        r"XPU out of memory\. Tried to allocate|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|\bXPU OOM\b",
        "The card is full: several ranks on one card, a model too large, or the rollout's cache not released.",
        "xpu-smi ps; xpu-shim doctor --group environment   # is each rank on a card of its own?",
        _gh("intel/llm-scaler/issues/578"),
    ),
    Signature(
        "memory_profiling",
        r"Error in memory profiling\. Initial free memory",
        "vLLM takes it that nobody else frees memory while it measures, and a colocated trainer does.",
        "run with the shim (patch vllm.memory_profiling)",
        _gh("vllm-project/vllm/pull/33358", "vllm-project/vllm/issues/56830"),
    ),
    Signature(
        "sleep_assert",
        r"Memory usage increased after sleeping",
        "A wrong or foreign reading of free memory while vLLM goes to sleep.",
        "run with the shim (patch vllm.sleep_assert), and a driver from 26.18 on",
        _gh("vllm-project/vllm/issues/56830"),
    ),
    Signature(
        "sleep_mode",
        r"Sleep mode is not supported on current platform",
        "vLLM before 0.23, torch before 2.11 or vllm_xpu_kernels without its allocator cannot sleep on XPU.",
        "run with the shim (patch verl.rollout_sleep), or actor_rollout_ref.rollout.enable_sleep_mode=False",
        _gh("vllm-project/vllm/pull/37149", "vllm-project/vllm/pull/23704", "intel/llm-scaler/issues/568"),
    ),
    Signature(
        "shared_memory",
        r"\bSIGBUS\b|\bBus error\b|insufficient shared memory \(shm\)|No space left on "
        r"device.{0,40}/dev/shm|/dev/shm.{0,60}No space left",
        "/dev/shm is full or too small: writing beyond it kills the process without a traceback.",
        "df -h /dev/shm; docker run --ipc=host ...   # or --shm-size 16g",
        _gh("sgl-project/sglang/pull/40720", "sgl-project/sglang/pull/39891"),
    ),
    Signature(
        "ray_memory_monitor",
        r"exceeds the memory usage threshold of [\d.]+.{0,10}Ray killed|Task was killed due to the node "
        r"running low on memory|"
        r"killed by the Ray memory monitor",
        "The host ran out of memory. On XPU each worker can map every visible card's memory; address "
        "space (VmPeak) does not "
        "count.",
        "xpu-shim doctor --group memory; export NEOReadDebugKeys=1 EnableDeferBacking=0   # not "
        "RAY_memory_monitor_refresh_ms=0, the kernel kills then",
        _gh("kahlun/verl/pull/1", "vllm-project/vllm/issues/53822", "vllm-project/vllm/pull/56012"),
    ),
    # -- weight transfer ---------------------------------------------------------------------------------------------
    Signature(
        "tensor_ipc",
        r"_share_fd_\W{0,3}: only available on CPU",
        "XPU tensors cannot be shared between processes: torch has no _share_xpu_.",
        "run with the shim (weights go through host memory), or move the tensor to the CPU before it is sent",
        _gh(
            "intel/torch-xpu-ops/issues/1678",
            "intel/torch-xpu-ops/issues/5406",
            "intel/torch-xpu-ops/issues/4000",
            "pytorch/pytorch/issues/170636",
            "pytorch/pytorch/pull/191725",
            "sgl-project/sglang/pull/40720",
        ),
    ),
    Signature(
        "digest",
        r"AuthenticationError: digest received was wrong",
        "Two processes of one job have different multiprocessing keys, as under Ray, and share a tensor "
        "by file descriptor.",
        "run with the shim, or torch.multiprocessing.set_sharing_strategy('file_system')",
        _gh("sgl-project/sglang/pull/40720", "sgl-project/sglang/pull/39891"),
    ),
    # -- torch, oneDNN, Triton ---------------------------------------------------------------------------------------
    Signature(
        "torch_xpu_attribute",
        r"module 'torch\.xpu[\w.]*' has no attribute",
        "torch.xpu lacks a function that torch.cuda has.",
        "run with the shim (patch torch.xpu_ipc_collect and verl's platform); torch 2.11 or later",
        _gh(
            "verl-project/verl/pull/7184",
            "huggingface/accelerate/pull/3772",
            "pytorch/pytorch/issues/127929",
            "pytorch/pytorch/pull/165510",
        ),
    ),
    Signature(
        "primitive",
        r"could not create a primitive",
        "oneDNN found no device for its kernel: ONEAPI_DEVICE_SELECTOR hides the OpenCL device, no OpenCL driver is "
        "installed, the driver is one of the broken ones (Arc A, 26.14), or an integrated GPU is used.",
        "unset ONEAPI_DEVICE_SELECTOR; xpu-shim doctor --group driver --group hardware",
        _gh(
            "kahlun/verl/pull/1",
            "intel/compute-runtime/issues/963",
            "intel/intel-extension-for-pytorch/issues/508",
            "intel/ipex-llm/issues/11305",
        ),
    ),
    Signature(
        "opencl_memory",
        r"CL_OUT_OF_HOST_MEMORY",
        "The compiler in compute-runtime 26.14 and later fails on Arc A cards.",
        "sudo apt install libze-intel-gpu1=26.09* intel-opencl-icd=26.09*",
        _gh("intel/compute-runtime/issues/963"),
    ),
    Signature(
        "triton_drivers",
        r"\d+ active drivers \(\[.{0,40}\]\)",
        "Triton found no device: ONEAPI_DEVICE_SELECTOR is set, or it is the CUDA build of Triton.",
        "unset ONEAPI_DEVICE_SELECTOR; xpu-shim doctor --group torch",
        _gh("intel/intel-xpu-backend-for-triton/issues/3095"),
    ),
    Signature(
        "triton_jit",
        r"Did you forget to add @triton\.jit",
        "Something replaced a function of triton.language, and Triton 3.7 cannot compile the replacement.",
        "remove the monkey patch on triton.language; the shim makes none",
        _gh("intel/intel-xpu-backend-for-triton/issues/7355"),
    ),
    Signature(
        "selector",
        r"ONEAPI_DEVICE_SELECTOR parsing error|Incomplete selector! Try",
        "ONEAPI_DEVICE_SELECTOR has no backend (0,1 in place of level_zero:0,1); Ray before 2.58 writes it so.",
        "unset ONEAPI_DEVICE_SELECTOR; export ZE_AFFINITY_MASK=0,1",
        _gh("ray-project/ray/pull/64440"),
    ),
    Signature(
        "integrated_device",
        r"PI_ERROR_INVALID_DEVICE|UR_RESULT_ERROR_INVALID_DEVICE\b",
        "Work for one GPU was sent to another kind, mostly the integrated one beside a card.",
        "export ZE_AFFINITY_MASK=<ordinals of the discrete cards>   # xpu-shim doctor --group hardware names them",
        _gh(
            "intel/AI-Playground/issues/79",
            "intel/AI-Playground/issues/249",
            "intel/intel-extension-for-pytorch/issues/536",
        ),
    ),
    Signature(
        "max_autotune",
        r"(UR|ZE)_RESULT_ERROR_OUT_OF_RESOURCES|PI_ERROR_OUT_OF_RESOURCES|\bOUT_OF_RESOURCES\b",
        "A compiled kernel needs more registers or local memory than the card has; max_autotune tries such ones.",
        "unset TORCHINDUCTOR_MAX_AUTOTUNE; actor_rollout_ref.actor.use_torch_compile=False",
        _gh("pytorch/torchtitan/pull/3890"),
    ),
    Signature(
        "flat_param",
        r"data_ptr\(\).{0,40}_local_shard|_local_shard.{0,10}data_ptr\(\)",
        "torch before 2.11 returns signed addresses from data_ptr() on XPU, and FSDP1's offload compares them.",
        "pip install 'torch>=2.11' for XPU, or strategy=fsdp2",
        _gh(
            "pytorch/pytorch/pull/135567",
            "pytorch/pytorch/issues/135550",
            "https://github.com/kahlun/verl/commit/51ad12a15d0ec635367745690156a2cb73045934",
        ),
    ),
    Signature(
        "flash_attn",
        r"No module named 'flash_attn|FlashAttention2 has been toggled on, but it cannot be used|local "
        r"variable '(un)?pad_input'|"
        r"flash_attn seems to be not installed",
        "flash_attn exists for CUDA only; the model or verl asked for it.",
        "run with the shim; else +actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        _gh(
            "verl-project/verl/pull/7033",
            "verl-project/verl/pull/7917",
            "huggingface/transformers/pull/41956",
            "huggingface/transformers/issues/45399",
        ),
    ),
    Signature(
        "kineto",
        r"Fail to enable Kineto Profiler on XPU|PTI_ERROR_NOT_IMPLEMENTED",
        "The profiling library and the driver do not fit: the trace has no XPU activity.",
        "profile with activities=[CPU], or another driver release; VTune is not affected",
        _gh("pytorch/pytorch/issues/153632", "intel/torch-xpu-ops/issues/4353", "intel/torch-xpu-ops/issues/3985"),
    ),
    # -- installation ------------------------------------------------------------------------------------------------
    Signature(
        "mixed_oneapi",
        r"LIBUR_LOADER_[\d.]+\W{0,2} not found|lib(sycl|ur_loader)\.so\.\d+.{0,60}(not found|cannot open "
        r"shared object)|RuntimeError: UR error",
        "A sourced oneAPI (setvars.sh) is found before the libraries of the torch wheels.",
        "start a new shell without `source setvars.sh`; env -u LD_LIBRARY_PATH <command>",
        _gh(
            "pytorch/pytorch/issues/149953",
            "pytorch/pytorch/issues/180948",
            "intel/intel-xpu-backend-for-triton/issues/3095",
        ),
    ),
    Signature(
        "no_device",
        r"XPU device count is zero|No XPU devices are available",
        "Level Zero finds no card this user can open: permissions, /dev/dri not in the container, no driver, a mask.",
        "xpu-shim doctor --group hardware --group driver",
        _gh(
            "intel/llm-scaler/issues/370",
            "open-edge-platform/geti/issues/5387",
            "open-edge-platform/physical-ai-studio/issues/417",
            "vllm-project/vllm/pull/48634",
        ),
    ),
    Signature(
        "wrong_torch",
        r"PyTorch was compiled without CUDA support|Torch not compiled with (CUDA|XPU) enabled",
        "torch is a build for something else, or code asks for CUDA on an XPU build.",
        "xpu-shim doctor --group torch   # python -c 'import torch; print(torch.__version__, torch.version.xpu)'",
        _gh("pytorch/pytorch/issues/189811", "vllm-project/vllm/issues/39170"),
    ),
    Signature(
        "ipex",
        r"Intel.{0,20}Extension for PyTorch\*? needs to work with PyTorch|"
        r"intel_extension_for_pytorch.{0,120}undefined symbol",
        "An intel_extension_for_pytorch of another torch release is imported; it ended with 2.8.",
        "pip uninstall -y intel-extension-for-pytorch oneccl-bind-pt",
        _gh("intel/intel-extension-for-pytorch/issues/867", "intel/intel-extension-for-pytorch/issues/865"),
    ),
    Signature(
        "no_platform",
        r"Unknown device: \w+ for model_type|KeyError: 'NPU'|The key\(device-vendor.{0,60}already regist",
        "verl does not know Intel GPUs, and the shim was not there, or another plugin registered the same engine.",
        "xpu-shim status; xpu-shim doctor --group python --group verl",
        _gh("verl-project/verl/pull/7371", "verl-project/verl/issues/6403"),
    ),
    Signature(
        "ray_gpus",
        r"Total available GPUs \d+(\.\d+)? is less than total desired GPUs",
        "Ray counts fewer GPUs than verl asks for; without the shim it counts no Intel ones at all.",
        "ray status; xpu-shim doctor --group hardware --group ray   # or lower trainer.n_gpus_per_node",
        _gh("ray-project/ray/issues/66167"),
    ),
    Signature(
        "micro_batches",
        r"max_group_token_len.{0,60}max_token_len",
        "MAX or MIN over ranks came back as their sum on this stack.",
        "run with the shim (patch torch.process_group_reductions checks and corrects them)",
        _gh("intel/torch-xpu-ops/issues/3059"),
    ),
    Signature(
        "transfer_queue",
        r"No module named 'transfer_queue'",
        "verl's default trainer from 0.9.1 on needs TransferQueue.",
        "pip install 'TransferQueue>=0.1.10'   # or trainer.use_v1=False",
        _gh("verl-project/verl"),
    ),
    Signature(
        "vllm_kernels",
        r"No module named 'vllm_xpu_kernels|Failed to infer device type",
        "This vLLM is not an XPU build.",
        "xpu-shim doctor --group vllm",
        ("https://docs.vllm.ai/en/latest/getting_started/installation/gpu.html",),
    ),
    Signature(
        "numa_pynvml",
        r"pynvml not available, skipping NUMA affinity",
        "verl asks NVML for the CPUs next to a card; harmless, the process is just not bound.",
        "run with the shim (patch verl.numa reads sysfs)",
        _gh("verl-project/verl/pull/5627", "verl-project/verl/pull/3471"),
        consequence=True,
    ),
)

#: Any other error of oneCCL: named only where nothing above matches the line.
OTHER_ONECCL = Signature(
    "oneccl",
    r"oneCCL: [\w./]+:\d+ [\w~:]+: EXCEPTION",
    "An error of oneCCL that this table does not know.",
    "export CCL_LOG_LEVEL=info   # once more; the lines before the error name the algorithm and the transport",
    _gh("uxlfoundation/oneCCL/issues"),
)


@functools.lru_cache(maxsize=1)
def _compiled() -> tuple[re.Pattern[str], tuple[tuple[re.Pattern[str], Signature], ...]]:
    """One pattern that says "something here is known", and each one by itself."""
    everything = (*SIGNATURES, OTHER_ONECCL)
    # Inline flags must stand at the start of a pattern, so "(?i)x" becomes "(?i:x)" inside the union.
    parts = [re.sub(r"^\(\?i\)(.*)$", r"(?i:\1)", item.pattern, flags=re.DOTALL) for item in everything]
    return re.compile("|".join(f"(?:{part})" for part in parts)), tuple(
        (re.compile(item.pattern), item) for item in everything
    )


def find(text: str) -> list[Signature]:
    """The known failures a text names, in the order of the table; nothing for an unknown text."""
    anything, each = _compiled()
    if not text or not anything.search(text):
        return []
    found = [item for pattern, item in each if pattern.search(text)]
    return [item for item in found if item is not OTHER_ONECCL] or found
