"""Simulated Intel XPU devices on the CPU build of torch: a test harness.

With ``SIMXPU=1`` in the environment, ``import torch`` gives a torch whose device ``xpu`` works: several devices whose
memory is host memory and whose kernels are the CPU's, torch's own ``torch.xpu`` module, and the process group backend
``xccl`` over gloo. Nothing needs to be imported, so subprocesses, Ray workers and spawned engines get it from the
environment alone. Without it nothing changes.

Importing this package loads nothing; see :func:`simxpu.install` for a process that has torch loaded already.
"""

from .settings import enabled

__version__ = "0.2.0"
__all__ = ["__version__", "enabled", "install"]


def install() -> None:
    """Turn the simulated devices on in this process, whether or not ``SIMXPU`` is set.

    Must run before the process's first ``backward()``: autograd's threads are made for the devices known then.

    Raises:
        RuntimeError: torch has real XPU support, or is not the version this package was built against.
    """
    from .torch_module import install

    install()
