"""The ``vllm.platform_plugins`` and ``vllm.general_plugins`` entry points.

vLLM chooses its platform by probing. With simulated XPUs in the process its XPU platform is probed too, although the
vLLM installed is the CPU build. A platform named by a plugin goes before the probed ones and makes the choice certain.
"""

import os

from .settings import enabled


def wanted() -> bool:
    """With simulated devices; or with ``SIMXPU_VLLM=1`` alone, for a run on plain CPU to compare with."""
    return enabled() or os.environ.get("SIMXPU_VLLM") == "1"


def platform() -> str | None:
    """The class vLLM is to use, or None to let it choose."""
    if enabled():
        return "simxpu.vllm_card.CardPlatform"
    return "vllm.platforms.cpu.CpuPlatform" if wanted() else None


def keep_weights_loadable() -> None:
    """Stop vLLM's CPU build from packing linear weights when it loads them. Called in every process of an engine.

    On CPUs with AMX or oneDNN it replaces a layer's weight by an empty parameter and computes with a packed copy, so a
    second load (each weight sync of a trainer) ends in ``AttributeError: 'Parameter' object has no attribute
    'weight_loader'``. GPU builds keep their weights, and so must the rollout that stands in for one.
    """
    if not wanted():
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    import torch

    # Linux grants AMX's tile registers to a process that asks. oneDNN asks; vLLM's own attention kernels for bfloat16 use them
    # without asking, and with oneDNN switched off below they would end the process with an illegal instruction.
    getattr(torch.cpu, "_init_amx", bool)()
    from vllm import _custom_ops
    from vllm.model_executor.layers import utils

    utils.check_cpu_sgl_kernel = lambda *args, **kwargs: False
    _custom_ops._supports_onednn = False
