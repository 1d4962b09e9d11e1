"""Run as a program: vLLM's real `XpuMemAllocator` put to sleep and woken twice, stock and patched, as JSON.

    python double_sleep.py /path/with/vllm

The compiled allocator is a stand-in that knows what is mapped and complains as the driver would. Stdout's last line is
`{"version": ..., "stock": {name: outcome}, "patched": {...}}`; an outcome is the list of mapped names or an error text.
"""

from __future__ import annotations

import json
import sys

from card import StandIns

SIZE = 1 << 20
NAMES = {1: "weights", 2: "kv_cache"}


class Driver:
    """What is mapped, by address; unmapping or mapping twice is an error, as it is in Level Zero."""

    def __init__(self) -> None:
        self.mapped = {1, 2}

    def unmap(self, handle) -> None:
        if handle[2] not in self.mapped:
            raise RuntimeError(f"unmapped twice: {NAMES[handle[2]]}")
        self.mapped.discard(handle[2])

    def map(self, handle) -> None:
        if handle[2] in self.mapped:
            raise RuntimeError(f"mapped twice: {NAMES[handle[2]]}")
        self.mapped.add(handle[2])


SEQUENCES = {
    "once": (("sleep", ("weights",)), ("wake_up", None)),
    "sleep twice": (("sleep", ("weights",)), ("sleep", ("weights",)), ("wake_up", None)),
    "wake twice": (("sleep", ("weights",)), ("wake_up", ["weights"]), ("wake_up", None)),
    "as verl syncs": (("sleep", ()), ("wake_up", ["weights"]), ("sleep", ()), ("wake_up", ["weights", "kv_cache"])),
    "one part, then all": (("sleep", ()), ("wake_up", ["kv_cache"]), ("wake_up", ["weights"]), ("wake_up", None)),
}


def run(xpumem, steps) -> list[str] | str:
    driver = Driver()
    xpumem.unmap_and_release = driver.unmap
    xpumem.create_and_allocate = driver.map
    xpumem._xpu_memcpy_sync = lambda *_: None
    xpumem.PIN_MEMORY = False
    allocator = xpumem.XpuMemAllocator()
    for address, tag in NAMES.items():
        allocator.current_tag = tag
        allocator.python_malloc_callback((0, SIZE, address, 0))
    records = dict(allocator.pointer_to_data)
    try:
        for step, argument in steps:
            getattr(allocator, step)(argument)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    assert allocator.pointer_to_data == records
    allocator.python_free_callback(1)
    assert list(allocator.pointer_to_data) == [2]
    return sorted(NAMES[address] for address in driver.mapped)


def main(release: str) -> dict:
    if release:
        sys.path.insert(0, release)
    sys.meta_path.append(StandIns())
    import torch
    import vllm
    import vllm.device_allocator.xpumem as xpumem

    torch.accelerator.synchronize = lambda *_: None
    result: dict = {"version": vllm.__version__}
    result["stock"] = {name: run(xpumem, steps) for name, steps in SEQUENCES.items()}
    from xpu_shim.core import ledger
    from xpu_shim.core.apply import apply_patch

    apply_patch("vllm.double_sleep")
    result["state"] = ledger.record("vllm.double_sleep").state
    result["patched"] = {name: run(xpumem, steps) for name, steps in SEQUENCES.items()}
    return result


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(sys.argv[1])) + "\n")
