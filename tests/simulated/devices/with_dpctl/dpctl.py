"""A stand-in for dpctl on simulated devices: counting devices initialises Level Zero, as the real one does."""

from __future__ import annotations


class SyclContext:
    """What Ray asks for the number of devices."""

    def __init__(self, selector: str) -> None:
        import torch

        torch.xpu.init()
        self.device_count = torch.xpu.device_count()


class SyclDevice:
    """What Ray asks for the name of the first device."""

    def __init__(self, selector: str) -> None:
        import torch

        self.name = torch.xpu.get_device_properties(0).name
