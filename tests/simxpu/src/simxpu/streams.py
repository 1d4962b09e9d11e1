"""The base classes that ``torch.xpu.Stream`` and ``torch.xpu.Event`` derive from in an XPU build."""

import torch

from . import _C

_XPU = 12  # c10::DeviceType::XPU


class XpuStreamBase(torch.Stream):
    def __new__(cls, priority=0, stream_id=None, device_index=None, device_type=None, stream_ptr=None):
        if stream_id is not None and device_index is not None:
            kind = _XPU if device_type is None else device_type
            return super().__new__(cls, stream_id=stream_id, device_index=device_index, device_type=kind)
        return super().__new__(cls, torch.device("xpu", torch._C._xpu_getDevice()), priority=priority)

    def __init__(self, *args, **kwargs):
        pass

    @property
    def sycl_queue(self) -> int:
        return _C.queue_handle(self.device_index, self.stream_id)

    @property
    def priority(self) -> int:
        return 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return (1, -1)


class XpuEventBase(torch.Event):
    def __new__(cls, enable_timing=False):
        return super().__new__(cls, torch.device("xpu", torch._C._xpu_getDevice()), enable_timing=enable_timing)

    def __init__(self, *args, **kwargs):
        pass

    def elapsed_time(self, end: "XpuEventBase") -> float:
        """Milliseconds between two recorded events; torch.Event's own method refuses derived classes."""
        return _C.event_elapsed_ms(self.event_id, end.event_id)

    @property
    def sycl_event(self) -> int:
        return self.event_id
