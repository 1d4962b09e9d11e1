"""Making torch use the simulated devices.

``torch.xpu`` of a CPU build is the real module over missing bindings. It gets the bindings from ``simxpu._C`` and is
run again, so that everything above them is torch's own code.
"""

import importlib
import os
import sys

import torch

from . import faults as fault_settings
from . import settings, sysfs, tripwire, visibility
from .description import parse

_installed = False
#: What the process sees, by index; known once the device has been used.
_devices: list[visibility.Device] = []


def install() -> None:
    """See :func:`simxpu.install`."""
    global _installed
    if _installed:
        return
    if torch._C._has_xpu:
        raise RuntimeError("This torch has real XPU support; simxpu is for CPU builds only. Unset SIMXPU.")
    _check_torch_version()
    cards = parse(settings.devices())
    faults = fault_settings.from_environment(os.environ)
    sysfs.export()

    from . import _C

    _apply_faults(_C, faults)
    _C.set_resolver(_resolver(_C, cards, "mask_ignored" in faults))
    _bind(_C)
    _rerun_torch_xpu()
    _register_backend(_C)
    torch.version.xpu = os.environ.get("SIMXPU_TORCH_XPU") or settings.DEFAULT_TORCH_XPU
    _installed = True


def _check_torch_version() -> None:
    try:
        from ._built_for import TORCH_VERSION
    except ImportError:
        raise RuntimeError(
            "simxpu is not built. Install it with: pip install --no-build-isolation ./tests/simxpu"
        ) from None
    if str(torch.__version__) != TORCH_VERSION:
        raise RuntimeError(
            f"simxpu was built against torch {TORCH_VERSION}, but this is torch {torch.__version__}. "
            "Build it again: pip install --no-build-isolation --force-reinstall --no-deps ./tests/simxpu"
        )


def _apply_faults(_C, faults: fault_settings.Faults) -> None:
    native = _C.faults
    for name in fault_settings.CATALOGUE:
        if isinstance(getattr(native, name, None), bool):
            setattr(native, name, name in faults)
    native.hangs = [_C.HangRule(h.collective, h.call, h.rank) for h in faults.hangs]
    native.device_lost = faults.device_lost
    native.device_lost_rank = faults.device_lost_rank
    native.hang_limit = settings.hang_limit()


def _resolver(_C, cards, mask_ignored: bool):
    folder = settings.shared_dir()
    prefix = f"simxpu-{os.getuid()}-{settings.machine() or 'default'}"

    def resolve():
        tripwire.fire()
        _devices[:] = visibility.visible(cards, os.environ, mask_ignored)
        return [
            _C.VisibleDevice(
                d.uuid.hex(),
                d.total_memory,
                [str(folder / f"{prefix}-{d.card.uuid(t).hex()}.memory") for t in d.tiles],
            )
            for d in _devices
        ]

    return resolve


def _bind(_C) -> None:
    from .properties import XpuDeviceProperties
    from .streams import XpuEventBase, XpuStreamBase

    for name in dir(_C):
        if name.startswith("_xpu_"):
            setattr(torch._C, name, getattr(_C, name))

    known: dict[visibility.Device, XpuDeviceProperties] = {}

    def get_device_properties(index: int) -> XpuDeviceProperties:
        device = _devices[index]
        if device not in known:
            known[device] = XpuDeviceProperties(device)
        return known[device]

    def xpu_init() -> None:
        torch.xpu.default_generators = _C.initialise()
        torch.xpu._get_device_properties = get_device_properties

    torch._C._xpu_init = xpu_init
    torch._C._XpuDeviceProperties = XpuDeviceProperties
    torch._C._XpuStreamBase, torch._C._XpuEventBase = XpuStreamBase, XpuEventBase
    torch._C._has_xpu = True


def _rerun_torch_xpu() -> None:

    for name in (
        "torch.xpu._utils",
        "torch.xpu.streams",
        "torch.xpu",
        "torch.xpu.memory",
        "torch.xpu.random",
        "torch.xpu",
    ):
        importlib.reload(sys.modules[name])


def _register_backend(_C) -> None:
    """c10d decided while it was imported that there is no XCCL."""
    import torch.distributed.distributed_c10d as c10d

    def copied(options, _memo=None):
        """torch copies a parent group's options when it splits the group."""
        new = type(options)(options.is_high_priority_stream)
        for name in ("_timeout", "global_ranks_in_group", "group_name"):
            setattr(new, name, getattr(options, name))
        return new

    backend = _C.ProcessGroupXCCL
    backend.Options.__copy__ = backend.Options.__deepcopy__ = copied
    backend.__module__ = "torch.distributed.distributed_c10d"
    for module in (torch._C._distributed_c10d, c10d, torch.distributed):
        module.ProcessGroupXCCL = backend
    c10d._XCCL_AVAILABLE = True
    if "ProcessGroupXCCL" not in c10d.__all__:
        c10d.__all__ += ["ProcessGroupXCCL"]
