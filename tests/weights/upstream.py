"""verl's own sender and receiver, imported without vLLM and made to run on a machine without an accelerator.

Works with whatever verl release is first on the path. Nothing of the transfer is replaced: only the packages around the
module (their `__init__`s want vLLM, Ray and seconds; of `rollout.utils` only the one function the sender uses is run) and the
device module that `get_torch_device` gives.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import logging
import sys
import types
from pathlib import Path

import torch

PACKAGES = ("verl", "verl.utils", "verl.workers", "verl.workers.rollout", "verl.workers.rollout.vllm_rollout")
NAME = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer"


class HostDevice:
    """What verl calls on `torch.xpu` and friends, for the host."""

    synchronize = staticmethod(lambda *_: None)
    empty_cache = staticmethod(lambda: None)
    ipc_collect = staticmethod(lambda: None)


def load() -> types.ModuleType:
    """The module with `BucketedWeightSender` and `BucketedWeightReceiver`, unpatched unless somebody patched it."""
    if NAME not in sys.modules:
        specification = importlib.util.find_spec("verl")
        assert specification is not None, "verl is not installed"
        root = Path(specification.submodule_search_locations[0])
        for package in PACKAGES:
            bare = types.ModuleType(package)
            bare.__path__ = [str(root.joinpath(*package.split(".")[1:]))]
            sys.modules[package] = bare
        utils = types.ModuleType("verl.workers.rollout.utils")
        tree = ast.parse((root / "workers" / "rollout" / "utils.py").read_text())
        tree.body = [node for node in tree.body if getattr(node, "name", "") == "ensure_async_iterator"]
        exec(compile(tree, str(root / "workers" / "rollout" / "utils.py"), "exec"), vars(utils))
        sys.modules[utils.__name__] = utils
        sys.modules["verl"].__version__ = (root / "version" / "version").read_text().strip()
    logging.disable(logging.WARNING)  # verl warns that there is no accelerator
    try:
        module = importlib.import_module(NAME)
    finally:
        logging.disable(logging.NOTSET)
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
