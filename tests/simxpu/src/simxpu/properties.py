"""What ``torch.xpu.get_device_properties`` returns."""

import uuid

from .visibility import Device


class Uuid:
    """The uuid as torch's bindings present it."""

    def __init__(self, value: bytes):
        self.bytes = list(value)

    def __str__(self) -> str:
        return str(uuid.UUID(bytes=bytes(self.bytes)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uuid) and self.bytes == other.bytes

    def __hash__(self) -> int:
        return hash(tuple(self.bytes))


class XpuDeviceProperties:
    """The attributes of an XPU build's ``torch._C._XpuDeviceProperties``; stand-ins if not in the description."""

    def __init__(self, device: Device):
        model = device.card.model
        units = model.compute_units * len(device.tiles)
        self.name = model.name
        self.platform_name = "Intel(R) oneAPI Unified Runtime over Level-Zero"
        self.vendor = "Intel(R) Corporation"
        self.device_id = model.device_id
        self.driver_version = "1.14.37435+simulated"
        self.version = "20.1.4"
        self.type = "gpu"
        self.max_compute_units = units
        self.gpu_eu_count = units
        self.gpu_subslice_count = units // 8
        self.max_work_group_size = 1024
        self.max_num_sub_groups = 64
        self.memory_clock_rate = 2400
        self.memory_bus_width = 64
        self.sub_group_sizes = [16, 32]
        self.local_mem_size = 131072
        self.last_level_cache_size = 18 << 20
        self.has_fp16 = True
        self.has_fp64 = model.has_fp64
        self.has_atomic64 = True
        self.has_bfloat16_conversions = True
        self.has_subgroup_matrix_multiply_accumulate = True
        self.has_subgroup_matrix_multiply_accumulate_tensor_float32 = True
        self.has_subgroup_2d_block_io = True
        self.is_integrated_gpu = model.integrated
        self.architecture = model.architecture
        self.total_memory = device.total_memory
        self.uuid = Uuid(device.uuid)

    def __repr__(self) -> str:
        return (
            f"_XpuDeviceProperties(name='{self.name}', platform_name='{self.platform_name}', type='{self.type}', "
            f"device_id=0x{self.device_id:X}, uuid={self.uuid}, driver_version='{self.driver_version}', "
            f"total_memory={self.total_memory // (1 << 20)}MB, max_compute_units={self.max_compute_units})"
        )
