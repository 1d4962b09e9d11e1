"""verl's own sender and receiver, imported without vLLM and made to run on a machine without an accelerator.

Works with whatever verl release is first on the path. Nothing of the transfer is replaced: only the package around the
module (its `__init__` wants vLLM) and the device module that `get_torch_device` gives.
"""

from __future__ import annotations

import importlib
import logging
import sys
import types
from pathlib import Path

import torch

NAME = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer"


class HostDevice:
    """What verl calls on `torch.xpu` and friends, for the host."""

    synchronize = staticmethod(lambda *_: None)
    empty_cache = staticmethod(lambda: None)
    ipc_collect = staticmethod(lambda: None)


def load() -> types.ModuleType:
    """The module with `BucketedWeightSender` and `BucketedWeightReceiver`, unpatched unless somebody patched it."""
    logging.disable(logging.WARNING)  # verl warns that there is no accelerator
    try:
        import verl.workers.rollout as rollout
    finally:
        logging.disable(logging.NOTSET)
    package = NAME.rpartition(".")[0]
    if package not in sys.modules:
        bare = types.ModuleType(package)
        bare.__path__ = [str(Path(rollout.__path__[0]) / "vllm_rollout")]
        sys.modules[package] = bare
    module = importlib.import_module(NAME)
    module.get_torch_device = lambda: HostDevice
    module.is_support_ipc = lambda: False
    return module


def force_copies() -> None:
    """Make `tensor.to(host)` copy, as it does to any real device. Otherwise what verl hands on is the shared memory."""
    original = torch.Tensor.to

    def to(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        return result.clone() if result.numel() and result.data_ptr() == self.data_ptr() else result

    torch.Tensor.to = to
