"""A vLLM server, and the engine processes that inherit from it, start in a sound environment."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.rollout_environment",
    targets=("verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.__init__",),
    why=(
        "The server writes the replica's device ids into the mask and starts vLLM in what it inherited. An "
        "ONEAPI_DEVICE_SELECTOR then kills EngineCore at import (Triton: `0 active drivers ([])`) or the first "
        "attention (`could not create a primitive`), and numbers what the mask left: a mask of card 1 with "
        "level_zero:1 leaves no device. Ids that count from 0 within the user's mask name the wrong card."
    ),
    how=(
        "Before the server is made: XPU_SHIM_PROCESS=rollout, no selector, spawned workers, and ids turned into "
        "physical ordinals where Ray's are not."
    ),
    upstream=(
        "https://github.com/kahlun/verl/pull/1",
        "https://github.com/ray-project/ray/pull/64440",
        "https://github.com/intel/torch-xpu-ops/issues/2089",
    ),
    remove_when="no supported Ray writes the selector, and Ray's ids of Intel GPUs are physical in every release.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("worker", "rollout"),
)


def apply(install: Install) -> None:
    install.replace("vLLMHttpServer.__init__", prepared)


def prepared(original):
    import inspect

    signature = inspect.signature(original)

    def __init__(*args, **kwargs):
        from verl.utils.device import get_visible_devices_keyword

        from xpu_shim.intel.visibility import MASK
        from xpu_shim.rollout import environment

        bound = signature.bind(*args, **kwargs)
        mask = environment.prepare(bound.arguments["cuda_visible_devices"])
        if get_visible_devices_keyword() == MASK:
            bound.arguments["cuda_visible_devices"] = mask
        original(*bound.args, **bound.kwargs)

    return __init__
