"""Ray finds Intel GPUs by itself, without dpctl and without touching Level Zero in its workers."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="ray.intel_accelerator",
    targets=(
        "ray._private.accelerators.intel_gpu:IntelGPUAcceleratorManager.get_current_node_num_accelerators",
        "ray._private.accelerators.intel_gpu:IntelGPUAcceleratorManager.get_current_node_accelerator_type",
        "ray._private.accelerators.intel_gpu:IntelGPUAcceleratorManager.get_visible_accelerator_ids_env_var",
        "ray._private.accelerators.intel_gpu:IntelGPUAcceleratorManager.get_current_process_visible_accelerator_ids",
        "ray._private.accelerators.intel_gpu:IntelGPUAcceleratorManager.set_current_process_visible_accelerator_ids",
        "ray._private.accelerators:get_accelerator_manager_for_resource",
    ),
    why=(
        "Without dpctl, which neither Ray nor vLLM installs, Ray sees no GPU: `ValueError: Total available GPUs 0 is "
        "less than total desired GPUs 4`. Told the number, it takes them for NVIDIA's, sets CUDA_VISIBLE_DEVICES, "
        "and every rank computes on card 0. With dpctl, every worker counts devices, which initialises Level Zero "
        "before the mask is written, so the mask is ignored: card 0 again. Ray up to 2.57 writes "
        "ONEAPI_DEVICE_SELECTOR, which breaks oneDNN and Triton, and its ids do not know ZE_AFFINITY_MASK."
    ),
    how=(
        "Counts devices from sysfs; makes the Intel manager the one for GPU; ids are ordinals as ZE_AFFINITY_MASK "
        "names them in every release. In verl's workers the mask is left as the user set it (XPU_SHIM_VISIBILITY=mask "
        "writes one device), because oneCCL wants to see all devices of a communicator and the worker is pinned "
        "instead; any other actor with a GPU gets the one-device mask that Ray documents."
    ),
    upstream=(
        "https://github.com/ray-project/ray/issues/66167",
        "https://github.com/ray-project/ray/pull/64440",
        "https://github.com/vllm-project/vllm/pull/58079",
        "https://github.com/intel/torch-xpu-ops/issues/2089",
    ),
    remove_when="Ray counts Intel GPUs without dpctl and without initialising Level Zero in its workers.",
    versions={"ray": ("2.53", "2.61")},
    processes=("driver", "worker", "rollout"),
)

MANAGER = "IntelGPUAcceleratorManager"


def apply(install: Install) -> None:
    from xpu_shim.devices import launch
    from xpu_shim.devices.settings import wants_intel

    if not wants_intel():
        install.skip("VERL_PLATFORM names another platform")
    if install.module.__name__ == "ray._private.accelerators":
        install.replace("get_accelerator_manager_for_resource", intel_for_gpu)
        return
    launch.prepare()  # a worker imports Ray first: now Ray has not narrowed the mask yet
    install.replace(f"{MANAGER}.get_current_node_num_accelerators", count)
    install.replace(f"{MANAGER}.get_current_node_accelerator_type", accelerator_type)
    install.replace(f"{MANAGER}.get_visible_accelerator_ids_env_var", mask_variable)
    install.replace(f"{MANAGER}.get_current_process_visible_accelerator_ids", visible_ids)
    install.replace(f"{MANAGER}.set_current_process_visible_accelerator_ids", narrow)


def intel_for_gpu(original):
    def get_accelerator_manager_for_resource(resource_name):
        if resource_name != "GPU":
            return original(resource_name)
        # Upstream asks every vendor in turn; AMD's first, which counts the graphics unit of a Ryzen CPU.
        from ray._private.accelerators.intel_gpu import IntelGPUAcceleratorManager

        if IntelGPUAcceleratorManager.get_current_node_num_accelerators() > 0:
            return IntelGPUAcceleratorManager
        return original(resource_name)

    return get_accelerator_manager_for_resource


def count(original):
    def get_current_node_num_accelerators():
        from xpu_shim.devices import ray_accelerator

        return ray_accelerator.count()

    return get_current_node_num_accelerators


def accelerator_type(original):
    def get_current_node_accelerator_type():
        from xpu_shim.devices import ray_accelerator

        return ray_accelerator.accelerator_type()

    return get_current_node_accelerator_type


def mask_variable(original):
    def get_visible_accelerator_ids_env_var():
        from xpu_shim.intel.visibility import MASK

        return MASK

    return get_visible_accelerator_ids_env_var


def visible_ids(original):
    def get_current_process_visible_accelerator_ids():
        from xpu_shim.devices import ray_accelerator

        return ray_accelerator.visible_ids()

    return get_current_process_visible_accelerator_ids


def narrow(original):
    def set_current_process_visible_accelerator_ids(visible_xpu_devices):
        import os

        from xpu_shim.devices import ray_accelerator
        from xpu_shim.devices.rayenv import NOSET_VARIABLES

        if not any(os.environ.get(name) not in (None, "", "0") for name in NOSET_VARIABLES):
            ray_accelerator.narrow(visible_xpu_devices)

    return set_current_process_visible_accelerator_ids
