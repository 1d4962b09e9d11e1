"""Run as a program: the real memory code of one vLLM release on a simulated card, as JSON.

    python vllm_memory.py /path/with/vllm '{"name": {"fault": "zero", "move": [0, 0], ...}, ...}'

What `XPUWorker.init_device` and the engine do with memory is done here with vLLM's own functions in their order:
snapshot, `request_memory`, weights, `Worker.determine_available_memory`, optionally `Worker.sleep`. Only the model
runner is a stand-in: it "allocates". Every case runs on unmodified vLLM, then with the patches. Stdout's last line is
`{"version": ..., "stock": {name: row}, "patched": {name: row}}` with rows `{"kv_cache": bytes}` or `{"error": text}`.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

from card import GIB, Card

PATCHES = ("vllm.memory_snapshot", "vllm.memory_profiling", "vllm.request_memory", "vllm.sleep_assert")

DEFAULTS = {
    "fault": None,  # of vLLM's own source
    "second_fault": None,  # of torch.xpu.mem_get_info, where that is another source
    "total": 24,  # GiB from here on
    "others": 6,
    "weights": 4,
    "peak": 1,
    "outside": 0.03,  # what vLLM takes outside torch's allocator
    "utilization": 0.5,
    "move": [0, 0],  # how the others change while weights load, and while vLLM profiles
    "kernel": False,  # whether the kernel's account of processes can be read
    "sleep_grows": None,  # GiB the others allocate while the worker goes to sleep
}


def main(release: str, cases: dict[str, dict]) -> dict:
    if release:
        sys.path.insert(0, release)
    import vllm

    vllm_asks_op = int(vllm.__version__.split(".")[1]) >= 25
    Card(GIB, 0).install(vllm_asks_op)
    result: dict = {"version": vllm.__version__}
    result["stock"] = {name: attempt(case, vllm_asks_op) for name, case in cases.items()}
    from xpu_shim.core.apply import apply_patch, remove_patch

    for patch in PATCHES:
        apply_patch(patch)
    result["patched"] = {name: attempt(case, vllm_asks_op) for name, case in cases.items()}
    for patch in PATCHES:
        remove_patch(patch)
    return result


def attempt(case: dict, vllm_asks_op: bool) -> dict:
    """One row."""
    from xpu_shim.rollout import device

    device.forget()
    try:
        return run(SimpleNamespace(**{**DEFAULTS, **case}), vllm_asks_op)
    except Exception as error:
        if os.environ.get("TRACEBACK"):
            import traceback

            traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def run(given, vllm_asks_op: bool) -> dict:
    """An engine's start on a new card; raises what vLLM raises."""
    import torch
    from vllm.utils.mem_utils import MemorySnapshot
    from vllm.v1.worker import gpu_worker
    from vllm.v1.worker.xpu_worker import XPUWorker

    card = Card(
        int(given.total * GIB),
        int(given.others * GIB),
        op_fault=given.fault,
        torch_fault=given.second_fault if vllm_asks_op else given.fault,
    )
    card.use(vllm_asks_op)
    kernel_account(card if given.kernel else None)
    trial_allocations(card)
    device = torch.device("xpu:0")
    cache_config = SimpleNamespace(gpu_memory_utilization=given.utilization, kv_cache_memory_bytes=None)
    worker = object.__new__(XPUWorker)
    worker.device, worker.cache_config = device, cache_config
    worker.init_snapshot = MemorySnapshot(device=device)
    worker.requested_memory = gpu_worker.request_memory(worker.init_snapshot, cache_config)

    card.allocate(int(given.weights * GIB))
    card.outside += int(given.outside * GIB)
    card.others += int(given.move[0] * GIB)

    def profile_run(*args, **kwargs):
        card.allocate(int(given.peak * GIB))
        card.release(int(given.peak * GIB))
        card.others += int(given.move[1] * GIB)

    worker.model_runner = SimpleNamespace(
        model_memory_usage=int(given.weights * GIB), profile_run=profile_run, model=SimpleNamespace(named_buffers=list)
    )
    configure(worker, gpu_worker)
    row = {"kv_cache": int(worker.determine_available_memory())}
    if given.sleep_grows is not None:
        sleep(worker, card, int(given.sleep_grows * GIB))
        row["slept"] = True
    return row


def configure(worker, gpu_worker) -> None:
    """The configuration a worker reads while it profiles: no graphs, no images, one process."""
    import contextlib

    from vllm.config import CUDAGraphMode

    worker.vllm_config = SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.NONE, cudagraph_mm_encoder=False),
        model_config=SimpleNamespace(enable_nccl_comm_suspend=False, sleep_preserve_parameter_names=[]),
        diffusion_config=None,
    )
    worker.model_config = SimpleNamespace(multimodal_config=None, enforce_eager=True, sleep_preserve_parameter_names=[])
    worker.parallel_config = SimpleNamespace(_api_process_count=1)
    worker.use_v2_model_runner = False
    if hasattr(gpu_worker, "set_current_vllm_config"):
        gpu_worker.set_current_vllm_config = lambda config: contextlib.nullcontext()


def sleep(worker, card: Card, growth: int) -> None:
    """`Worker.sleep` while others allocate; the allocator is a stand-in that gives the weights back."""

    def suspend(*args, **kwargs):
        card.release(card.allocated)
        card.reserved = 0
        card.others += growth

    stand_in = SimpleNamespace(sleep=suspend, suspend=suspend)
    worker._sleep_mode_backend = stand_in
    import vllm.device_allocator.cumem as cumem
    import vllm.v1.worker.gpu_worker as gpu_worker

    # The allocator has had three places.
    cumem.CuMemAllocator.get_instance = staticmethod(lambda: stand_in)
    if hasattr(gpu_worker, "get_mem_allocator_instance"):
        gpu_worker.get_mem_allocator_instance = lambda: stand_in
    worker.sleep(level=1)


def kernel_account(card: Card | None) -> None:
    """What the kernel would tell of this simulated card, in place of reading /proc; None: it tells nothing."""
    from xpu_shim.rollout import device
    from xpu_shim.rollout.holders import Holder

    device.card_holders = lambda index: (
        None if card is None else (Holder(1, "trainer", card.others), Holder(os.getpid(), "VLLM::Worker", card.own))
    )


def trial_allocations(card: Card) -> None:
    """Whether the card has room, in place of allocating on a device that is not there."""
    from xpu_shim.rollout import device

    device._can_allocate = lambda index, size: card.free >= size


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))) + "\n")
