"""Sleep mode: on where vLLM can give device memory back, off where it cannot, and verl's two settings in agreement."""

from __future__ import annotations

from typing import Any

from xpu_shim.core.log import logger, warn_once

_log = logger("xpu_shim.rollout")

#: Set on a server whose `free_cache_engine` was switched off here.
NEVER_SLEEPS = "_xpu_shim_never_sleeps"


def obstacle() -> str | None:
    """Why this process's vLLM cannot sleep, or None if it can. Asks the platform vLLM picked, not the machine."""
    import vllm
    from vllm.platforms import current_platform

    if not current_platform.is_sleep_mode_available():
        needs = "; Intel GPUs need vLLM 0.23 or newer" if current_platform.is_xpu() else ""
        return f"vLLM {vllm.__version__} has no sleep mode on platform {current_platform.device_name}{needs}"
    if not current_platform.is_xpu():
        return None
    try:
        from vllm.device_allocator.xpumem import xpumem_available
    except Exception as error:
        return f"vLLM's memory allocator for Intel GPUs cannot be imported ({type(error).__name__}: {error})"
    if not xpumem_available:
        return "vllm_xpu_kernels, which has the memory allocator sleep mode needs, lacks xpumem_allocator"
    import torch

    missing = [name for name in ("MemPool", "use_mem_pool") if not hasattr(torch.xpu.memory, name)]
    if missing:
        return f"torch {torch.__version__} has no torch.xpu.memory.{missing[0]}, which sleep mode needs (torch 2.11)"
    return None


def agree(server: Any, args: Any) -> None:
    """Switch sleep mode off where it cannot be, and `free_cache_engine` with it.

    Args:
        server: verl's `vLLMHttpServer`; its frozen config is changed.
        args: vLLM's parsed command line; `enable_sleep_mode` may be changed.
    """
    wanted = bool(getattr(args, "enable_sleep_mode", False))
    reason = obstacle() if wanted else "enable_sleep_mode is False"
    if reason is None:
        return
    frees = bool(server.config.free_cache_engine)
    args.enable_sleep_mode = False
    for name in ("enable_sleep_mode", "free_cache_engine"):
        object.__setattr__(server.config, name, False)
    setattr(server, NEVER_SLEEPS, True)
    if not wanted:
        _log.info("%s, so free_cache_engine has no effect", reason)
    elif server.replica_rank == 0 and server.node_rank == 0:
        warn_once(
            f"rollout.enable_sleep_mode=True is switched off: {reason}. "
            + ("rollout.free_cache_engine=True is switched off with it: " if frees else "")
            + "vLLM keeps its weights and KV cache while the trainer works. If device memory is short, lower "
            f"rollout.gpu_memory_utilization (now {getattr(args, 'gpu_memory_utilization', 'unknown')})."
        )
    else:
        _log.info("sleep mode is off: %s", reason)


def never_sleeps(server: Any) -> bool:
    """Whether waking this server has no meaning."""
    return bool(getattr(server, NEVER_SLEEPS, False))
