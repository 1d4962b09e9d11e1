"""The ``torch.backends`` entry point: torch calls it at the end of ``import torch``, in every process."""

from .settings import enabled


def autoload() -> None:
    """Turn the simulated devices on if SIMXPU=1; otherwise leave torch as it is."""
    if enabled():
        from .torch_module import install

        install()
