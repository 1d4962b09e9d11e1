"""verl's table of peak FLOPS knows Intel GPUs."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.flops_counter",
    targets=("verl.utils.flops_counter:get_device_flops",),
    why=(
        "The table names NVIDIA, AMD and Ascend cards and is searched for parts of the device's name. Intel GPUs have "
        "no entry, so MFU is always 0; and 'Intel(R) Arc(TM) Pro A40/A50 Graphics' is taken for an NVIDIA A40 of 149.7 "
        "TFLOPS."
    ),
    how=(
        "Names of Intel devices are looked up in the shim's table of dense bfloat16 figures; a tile of a card counts "
        "as its part. Intel devices that are not in it stay unknown. Other names go to verl's table."
    ),
    remove_when="verl's table has Intel GPUs and matches whole names.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker"),
    required=False,
)


def apply(install: Install) -> None:
    module = install.module
    install.replace("get_device_flops", lambda original: with_intel(original, module))


def with_intel(original, module):
    def get_device_flops(unit="T", device_name=None):
        import torch

        from xpu_shim.models import flops

        name, engines = device_name, None
        if name is None:
            device = module.get_torch_device()
            if device is not torch.xpu:
                return original(unit, device_name)
            name = device.get_device_name()
            engines = flops.vector_engines(device.get_device_properties(device.current_device()))
        if not flops.is_intel(name):
            return original(unit, device_name)
        # verl's units: B and everything unknown mean "as it is" and "quadrillions", one step of 1000 each in between.
        steps = ["B", "K", "M", "G", "T", "P"]
        return flops.of_device(name, engines) / 1000 ** (steps.index(unit) if unit in steps else len(steps))

    return get_device_flops
