"""Run as a program: the real memory code of one vLLM release on a simulated XPU beside a real co-tenant, as JSON.

    SIMXPU=1 SIMXPU_DEVICES=B60x1@2GiB python simulated_memory.py /path/with/vllm '{"name": {"faults": "…", …}, …}'

Unlike in vllm_memory.py nothing of torch is replaced: weights and activations are tensors on the simulated device, the
co-tenant is a second process, and readings go wrong by the simulator's own faults. Stand-ins are the model runner and
the compiled op, which asks what `torch.xpu.mem_get_info` asks. Stdout's last line is as in vllm_memory.py.
"""

from __future__ import annotations

import gc
import json
import sys
from types import SimpleNamespace

from card import intel_platform
from cotenant import CoTenant
from vllm_memory import PATCHES, configure

MIB = 1 << 20

#: MiB, on a card of 2048.
DEFAULTS = {
    "faults": "",  # as SIMXPU_FAULTS names them
    "others": 512,
    "weights": 320,
    "peak": 96,
    "utilization": 0.5,
    "move": [0, 0],  # how the co-tenant changes while weights load, and while vLLM profiles
}


def main(release: str, cases: dict[str, dict]) -> dict:
    if release:
        sys.path.insert(0, release)
    import torch

    ours = torch.accelerator.get_memory_info
    intel_platform()
    import vllm

    # vLLM 0.25 and newer ask their compiled op, and put the asking function here.
    operators = torch.library.Library("_C_cache_ops", "FRAGMENT")
    if torch.accelerator.get_memory_info is not ours:
        operators.define("getMemoryInfo(int device) -> (int, int)")
        operators.impl("getMemoryInfo", lambda device: torch.xpu.mem_get_info(device), "CompositeImplicitAutograd")
    cotenant = CoTenant()
    result: dict = {"version": vllm.__version__}
    try:
        result["stock"] = {name: attempt(case, cotenant) for name, case in cases.items()}
        from xpu_shim.core.apply import apply_patch

        for patch in PATCHES:
            apply_patch(patch)
        result["patched"] = {name: attempt(case, cotenant) for name, case in cases.items()}
    finally:
        cotenant.close()
    return result


def attempt(case: dict, cotenant: CoTenant) -> dict:
    """One row."""
    import torch

    from xpu_shim.rollout import device

    given = SimpleNamespace(**{**DEFAULTS, **case})
    device.forget()
    set_faults("")
    gc.collect()
    torch.xpu.empty_cache()
    cotenant.hold(given.others)
    try:
        return run(given, cotenant)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def set_faults(names: str) -> None:
    """Switch the simulator's faults of memory readings as `SIMXPU_FAULTS` would."""
    from simxpu import _C, faults

    asked = faults.parse(names)
    for name in ("free_memory_zero", "free_memory_total", "free_memory_raises"):
        setattr(_C.faults, name, name in asked)


def run(given, cotenant: CoTenant) -> dict:
    """An engine's start; raises what vLLM raises."""
    import torch
    from vllm.utils.mem_utils import MemorySnapshot
    from vllm.v1.worker import gpu_worker
    from vllm.v1.worker.xpu_worker import XPUWorker

    set_faults(given.faults)
    device = torch.device("xpu:0")
    cache_config = SimpleNamespace(gpu_memory_utilization=given.utilization, kv_cache_memory_bytes=None)
    worker = object.__new__(XPUWorker)
    worker.device, worker.cache_config = device, cache_config
    worker.init_snapshot = MemorySnapshot(device=device)
    worker.requested_memory = gpu_worker.request_memory(worker.init_snapshot, cache_config)
    weights = torch.empty(given.weights * MIB, dtype=torch.uint8, device=device)
    try:
        return profile(given, cotenant, worker, weights)
    finally:
        weights.set_()  # frames kept by a traceback must not keep the memory, too


def profile(given, cotenant: CoTenant, worker, weights) -> dict:
    """What is left for the KV cache, in bytes."""
    import torch
    from vllm.v1.worker import gpu_worker

    device = worker.device
    cotenant.hold(given.others + given.move[0])

    def profile_run(*args, **kwargs):
        torch.empty(given.peak * MIB, dtype=torch.uint8, device=device)
        cotenant.hold(given.others + sum(given.move))

    worker.model_runner = SimpleNamespace(
        model_memory_usage=weights.numel(), profile_run=profile_run, model=SimpleNamespace(named_buffers=list)
    )
    configure(worker, gpu_worker)
    return {"kv_cache": int(worker.determine_available_memory())}


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))) + "\n")
