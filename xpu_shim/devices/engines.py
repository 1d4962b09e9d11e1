"""verl's FSDP engines for device xpu: the stock classes, under the keys verl looks up."""

from __future__ import annotations

import os
from typing import Any

#: Backends whose stock engines are device-neutral.
BACKENDS = ("fsdp", "fsdp2")

DEVICE, VENDOR = "xpu", "intel"


def key(registry: Any) -> Any:
    """What this release of verl registers an Intel engine under: "xpu", or ("xpu", "intel") since vendors exist."""
    return (DEVICE, VENDOR) if has_vendors(registry) else DEVICE


def has_vendors(registry: Any) -> bool:
    """Whether this release's `register` takes a vendor (0.9.0 and newer)."""
    import inspect

    return "vendor" in inspect.signature(registry.register).parameters


def provide(registry: Any, model_type: str, backend: str) -> None:
    """Register the stock CUDA engine for Intel where nobody registered another one."""
    engines = registry._engines.get(model_type, {}).get(backend)
    if engines is None or backend not in BACKENDS or os.environ.get("VERL_ENGINE_DEVICE"):
        return
    stock = engines.get("cuda") or engines.get(("cuda", "nvidia"))
    if stock is not None and DEVICE not in engines:
        engines.setdefault(key(registry), stock)


def withdraw(registry: Any, model_type: str, backend: Any, device: Any) -> None:
    """Take a stock engine back out, so that another package's own can be registered in its place."""
    backends = backend if isinstance(backend, list) else [backend]
    devices = device if isinstance(device, list) else [device]
    if DEVICE not in devices:
        return
    for name in backends:
        engines = registry._engines.get(model_type, {}).get(name, {})
        stock = engines.get("cuda") or engines.get(("cuda", "nvidia"))
        if stock is not None and engines.get(key(registry)) is stock:
            del engines[key(registry)]
