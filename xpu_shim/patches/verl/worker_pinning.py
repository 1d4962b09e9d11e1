"""Every verl worker under Ray selects its own card, always."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.worker_pinning",
    targets=("verl.single_controller.base.worker:Worker._setup_env_cuda_visible_devices",),
    why=(
        "verl selects a device only when a RAY_EXPERIMENTAL_NOSET_ variable is set, and relies on Ray's mask "
        "otherwise. On XPU that mask is missing or ignored (it is read once, when the driver is initialised), and "
        "every rank computes on card 0: 1 of 4 cards in use, then `XPU out of memory`. With the variable set it "
        "takes Ray's number for a torch index, which with ZE_AFFINITY_MASK=2,3 is out of range."
    ),
    how=(
        "On xpu the worker selects, before anything else, the index that the device Ray assigned has in what the "
        "process really sees: with a mask honoured, ignored, or frozen by an early probe. LOCAL_RANK and "
        "LOCAL_WORLD_SIZE get the node's true values, from which torch's xccl group tells oneCCL where the rank is."
    ),
    upstream=(
        "https://github.com/volcengine/verl/pull/7917",
        "https://github.com/intel/torch-xpu-ops/issues/2089",
        "https://github.com/ray-project/ray/issues/66167",
    ),
    remove_when="verl pins unconditionally, by the index within what the process sees.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker"),
)


def apply(install: Install) -> None:
    install.replace("Worker._setup_env_cuda_visible_devices", always_pin)


def always_pin(original):
    def _setup_env_cuda_visible_devices(self):
        from verl.utils.device import get_device_name

        if get_device_name() != "xpu":
            return original(self)
        import os

        from xpu_shim.devices import assignment, pinning

        try:
            where = pinning.pin()
        except Exception as error:
            from xpu_shim.doctor.explain import explain

            explain(error)
            raise
        if where is not None and assignment.in_ray_worker() and os.environ.get("RAY_LOCAL_WORLD_SIZE"):
            os.environ["LOCAL_RANK"] = str(assignment.local_rank_in_ray())
            os.environ["LOCAL_WORLD_SIZE"] = os.environ["RAY_LOCAL_WORLD_SIZE"]
        return None

    return _setup_env_cuda_visible_devices
