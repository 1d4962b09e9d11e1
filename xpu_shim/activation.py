"""Is there work for an Intel GPU in this process? Answered without importing torch and without touching a driver."""

from __future__ import annotations

import ast
import os
import sys
from typing import NamedTuple

from xpu_shim.core.log import warn_once


class Decision(NamedTuple):
    """`active` is None while it depends on a torch that was not imported yet."""

    active: bool | None
    reason: str


_decided: Decision | None = None


def decide(torch_is_ready: bool = False) -> Decision:
    """Whether patches apply here, and why.

    `XPU_SHIM=1` forces them. Otherwise a CUDA or ROCm build of torch says no, an XPU build says yes, and with a CPU
    build or none the machine's discrete Intel GPUs decide (an integrated one beside another vendor's card does not
    make a training machine). The answer is kept once it cannot change.

    Args:
        torch_is_ready: torch's own `__init__` has finished, so `torch.version` is final.
    """
    global _decided
    if _decided is None or _decided.active is None:
        _decided = _look(torch_is_ready or _torch_finished())
    return _decided


def _look(torch_is_ready: bool) -> Decision:
    wanted = os.environ.get("XPU_SHIM", "")
    if wanted == "1":
        return Decision(True, "XPU_SHIM=1")
    if wanted == "0":
        return Decision(False, "XPU_SHIM=0")
    if wanted not in ("", "auto"):
        warn_once(
            f"XPU_SHIM={wanted!r} is not known; allowed are 0 (off), 1 (on whatever the machine is) and auto. "
            "Continuing as with auto."
        )
    imported = "torch" in sys.modules
    build = imported_torch_build() if imported else torch_build_on_disk()
    if build is not None:
        if build["xpu"]:
            return Decision(True, f"torch is an XPU build ({build['xpu']})")
        for vendor in ("cuda", "hip"):
            if build[vendor]:
                # What lies on disk can still be given an XPU device while it is imported (a backend plugin does).
                active = False if torch_is_ready else None
                return Decision(active, f"torch is a {vendor.upper()} build ({build[vendor]})")
    from xpu_shim.intel.devices import has_discrete_gpu

    if has_discrete_gpu():
        return Decision(True, "the machine has a discrete Intel GPU")
    if torch_is_ready:
        return Decision(False, "no discrete Intel GPU, and torch is not an XPU build")
    return Decision(None, "no discrete Intel GPU; torch was not imported yet")


def _torch_finished() -> bool:
    module = sys.modules.get("torch")
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def imported_torch_build() -> dict[str, str | None] | None:
    """`cuda`, `hip` and `xpu` of the imported `torch.version`, or None if it is not imported."""
    version = sys.modules.get("torch.version")
    if version is None:
        return None
    return {key: getattr(version, key, None) for key in ("cuda", "hip", "xpu")}


def torch_build_on_disk() -> dict[str, str | None] | None:
    """The same, read from the `torch/version.py` an import would use; None if there is none or it cannot be read."""
    for entry in sys.path:
        path = os.path.join(entry or os.curdir, "torch", "version.py")
        try:
            with open(path, encoding="utf-8") as file:
                tree = ast.parse(file.read())
        except (OSError, SyntaxError, ValueError):
            continue
        build: dict[str, str | None] = {"cuda": None, "hip": None, "xpu": None}
        for node in tree.body:
            targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
            value = getattr(node, "value", None)
            for target in targets:
                if isinstance(target, ast.Name) and target.id in build and isinstance(value, ast.Constant):
                    build[target.id] = value.value if isinstance(value.value, str) else None
        return build
    return None
