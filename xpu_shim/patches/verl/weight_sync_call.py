"""The trainer's sender knows of the call that has the rollout receive."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.weight_sync_call",
    targets=("verl.workers.rollout.vllm_rollout.vllm_rollout:ServerAdapter._execute_method",),
    why=(
        "A rollout whose engine has died, or dies before it connects, cannot tell the sender. The call of its server fails "
        "at once (`EngineDeadError: EngineCore encountered an issue`, `RayActorError: The actor died unexpectedly`), but "
        "verl looks at it only after it has sent everything, so the trainer waits for ever."
    ),
    how=(
        "The pending call of update_weights_from_ipc is handed to xpu_shim.weights, which stops sending and raises the "
        "call's error if it fails."
    ),
    upstream=("https://github.com/volcengine/verl/blob/main/verl/workers/rollout/vllm_rollout/vllm_rollout.py",),
    remove_when="verl awaits the rollout's call while it sends.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker"),
)


def apply(install: Install) -> None:
    install.replace("ServerAdapter._execute_method", announced)


def announced(original):
    async def _execute_method(self, method, *args, **kwargs):
        result = await original(self, method, *args, **kwargs)
        if method == "update_weights_from_ipc":
            from xpu_shim.weights import call

            call.announce(result)  # None on the ranks that have not called
        return result

    return _execute_method
