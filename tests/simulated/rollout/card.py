"""A card for vLLM's real memory code: torch's memory functions answer what a test says (simulated readings).

Nothing is allocated. `Card.install()` also makes vLLM's own Intel platform the current one, with stand-ins for the
compiled packages it imports (`vllm_xpu_kernels`; `gguf` for old releases).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

GIB = 1 << 30


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages that releases of vLLM import and this machine may lack: every attribute is an empty class."""

    ROOTS = ("vllm_xpu_kernels", "gguf", "diskcache", "kaldi_native_fbank", "cbor2", "mcp", "pybase64", "xgrammar")

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.ROOTS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)

        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        pass


def intel_platform() -> None:
    """Make the release's own platform for Intel GPUs the current one, with stand-ins for what it imports."""
    sys.meta_path.append(StandIns())
    import vllm.platforms
    from vllm.platforms.xpu import XPUPlatform

    XPUPlatform.is_integrated_gpu = classmethod(lambda cls, index=0: False)
    vllm.platforms._current_platform = XPUPlatform()


class Card:
    """Sizes in bytes. `op_fault` is the fault of vLLM's kernel op, `torch_fault` that of `torch.xpu.mem_get_info`:
    None, "zero", "total", "constant", "raises" or "other_total".
    """

    def __init__(self, total: int, others: int, op_fault: str | None = None, torch_fault: str | None = None) -> None:
        self.total, self.others = total, others
        self.op_fault, self.torch_fault = op_fault, torch_fault
        self.allocated = self.reserved = self.peak = 0  # by torch's allocator
        self.outside = 0  # by this process, outside the allocator
        self.first: tuple[int, int] | None = None
        self.readings = 0

    @property
    def own(self) -> int:
        return self.reserved + self.outside

    @property
    def free(self) -> int:
        return max(0, self.total - self.own - self.others)

    def allocate(self, size: int) -> None:
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.peak = max(self.peak, self.allocated)

    def release(self, size: int) -> None:
        self.allocated -= size

    def reading(self, fault: str | None) -> tuple[int, int]:
        self.readings += 1
        true = (self.free, self.total)
        if self.first is None:
            self.first = true
        if fault == "raises":
            raise RuntimeError("The device does not support querying the available free memory.")
        if fault == "other_total":
            return (true[0] // 2, self.total // 2) if self.readings > 1 else true
        return {"zero": (0, self.total), "total": (self.total, self.total), "constant": self.first}.get(fault, true)

    def install(self, vllm_asks_op: bool) -> None:
        """Make vLLM's Intel platform the current one, and this card xpu:0."""
        intel_platform()
        self.use(vllm_asks_op)

    def use(self, vllm_asks_op: bool) -> None:
        """Make torch's memory functions answer for this card.

        Args:
            vllm_asks_op: whether this release of vLLM replaces `torch.accelerator.get_memory_info` by its own op.
        """
        import torch

        def stats(*_):
            return {
                "allocated_bytes.all.peak": self.peak,
                "allocated_bytes.all.current": self.allocated,
                "reserved_bytes.all.current": self.reserved,
            }

        def empty_cache(*_):
            self.reserved = self.allocated

        def reset_peak(*_):
            self.peak = self.allocated

        answers = {
            "memory_stats": stats,
            "memory_reserved": lambda *_: self.reserved,
            "memory_allocated": lambda *_: self.allocated,
            "max_memory_allocated": lambda *_: self.peak,
            "empty_cache": empty_cache,
            "reset_peak_memory_stats": reset_peak,
            "synchronize": lambda *_: None,
            "device_count": lambda: 1,
        }
        for name, answer in answers.items():
            setattr(torch.xpu, name, answer)
            setattr(torch.accelerator, name, answer)
        torch.xpu.mem_get_info = lambda *_: self.reading(self.torch_fault)
        torch.cuda.mem_get_info = torch.xpu.mem_get_info  # as vLLM's model runner does on XPU up to 0.24
        fault = self.op_fault if vllm_asks_op else self.torch_fault
        torch.accelerator.get_memory_info = lambda *_: self.reading(fault)
        torch.xpu.current_device = lambda: 0
        properties = types.SimpleNamespace(total_memory=self.total, name="Intel(R) Arc(TM) Pro B60 Graphics")
        torch.xpu.get_device_properties = lambda *_: properties
