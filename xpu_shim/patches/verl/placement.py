"""verl 0.7.1 and 0.8.0 ask Ray for GPUs when the device is xpu."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.placement",
    targets=(
        "verl.single_controller.ray.base:RayResourcePool.get_placement_groups",
        "verl.single_controller.ray.base:RayClassWithInitArgs.__call__",
    ),
    why=(
        "These releases know the devices cuda and npu: for xpu the placement group asks for a resource of that name, "
        "which no node has, and the job waits for ever (`No available node types can fulfill resource request "
        "{'xpu': 1.0}`); workers are created without num_gpus."
    ),
    how="For device xpu both do what they do for cuda: Ray's resource is GPU.",
    upstream=("https://github.com/volcengine/verl/pull/7128", "https://github.com/volcengine/verl/issues/6403"),
    remove_when="verl 0.8.0 is no longer supported: newer releases ask the platform.",
    versions={"verl": ("0.7.1", "0.9")},
    processes=("driver", "worker"),
)


def apply(install: Install) -> None:
    install.replace("RayResourcePool.get_placement_groups", as_gpu)
    install.replace("RayClassWithInitArgs.__call__", as_gpu)


def as_gpu(original):
    import inspect

    signature = inspect.signature(original)

    def replacement(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("device_name") == "xpu":
            bound.arguments["device_name"] = "cuda"
        return original(*bound.args, **bound.kwargs)

    return replacement
