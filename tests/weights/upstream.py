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
import os
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


def releases() -> dict[str, str]:
    """Name to directory: the installed verl (""), and those unpacked in XPU_SHIM_RELEASES (`verl-0.8.0/verl/…`)."""
    folder = os.environ.get("XPU_SHIM_RELEASES") or os.environ.get("XPU_SHIM_TEST_RELEASES")
    unpacked = sorted(Path(folder).glob("verl-*")) if folder else []
    return {"installed": "", **{path.name: str(path) for path in unpacked if (path / "verl").is_dir()}}


def load(release: str = "") -> types.ModuleType:
    """The module with `BucketedWeightSender` and `BucketedWeightReceiver`, unpatched unless somebody patched it.

    Args:
        release: a directory from `releases`; another than the installed one replaces what was loaded.
    """
    if release:
        for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
            del sys.modules[name]
        sys.path.insert(0, release)
        importlib.invalidate_caches()
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


def parts(name: str, owner: str, methods: set[str], **given) -> type:
    """A class of verl's with only some of its methods, as the module `name`: what is around them wants vLLM and Ray.

    Args:
        name: the module; its text is that of the release that is loaded.
        owner: the class.
        methods: which to keep, if they are there.
        given: names of the module that they use.
    """
    package, _, last = name.rpartition(".")
    path = Path(sys.modules[package].__path__[0]) / f"{last}.py"
    tree = ast.parse(path.read_text())
    kept = next(node for node in tree.body if getattr(node, "name", "") == owner)
    assert isinstance(kept, ast.ClassDef)
    kept.bases = []
    kept.body = [node for node in kept.body if getattr(node, "name", "") in methods]
    tree.body = [*ast.parse("from __future__ import annotations").body, kept]
    module = types.ModuleType(name)
    vars(module).update(given, torch=torch, logger=logging.getLogger(name))
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), vars(module))
    sys.modules[name] = module
    setattr(sys.modules[package], last, module)
    return getattr(module, owner)


def force_copies() -> None:
    """Make `tensor.to(host)` copy, as it does to any real device. Otherwise what verl hands on is the shared memory."""
    original = torch.Tensor.to

    def to(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        return result.clone() if result.numel() and result.data_ptr() == self.data_ptr() else result

    torch.Tensor.to = to
