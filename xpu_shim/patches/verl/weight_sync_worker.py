"""The rollout's worker tells the trainer if it fails before it receives, and names the model that a sync loads into."""

from __future__ import annotations

import inspect
import os

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.weight_sync_worker",
    targets=("verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension.update_weights_from_ipc",),
    why=(
        "The worker prepares its model before it makes a receiver. If that raises, nobody comes to the sender, and the "
        "trainer waits for ever although the rollout's log has the error. And nothing in a run says whether the weights "
        "vLLM serves are the trainer's: a loader that skips a name, a wrong shard or a stale copy shows only as a reward "
        "that does not rise."
    ),
    how=(
        "With use_shm=True an error raised before the receiver connects is told to the sender, which raises it in the "
        "trainer with its traceback. With XPU_SHIM_WEIGHT_SYNC_VERIFY=1 every sync compares checksums of all tensors at "
        "both ends, and the bytes of the served model with what was loaded; a difference is an error that names the tensors."
    ),
    upstream=("https://github.com/volcengine/verl/blob/main/verl/workers/rollout/vllm_rollout/utils.py",),
    remove_when="verl's worker reports such errors to the sender, and can verify a sync itself.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker", "rollout"),
)


def apply(install: Install) -> None:
    import xpu_shim.weights.early  # noqa: F401  here rather than in the first sync

    install.replace("vLLMColocateWorkerExtension.update_weights_from_ipc", watched)


def watched(original):
    signature = inspect.signature(original)

    def update_weights_from_ipc(self, *args, **kwargs):
        from xpu_shim.core import ledger
        from xpu_shim.weights import early, verify

        given = signature.bind(self, *args, **kwargs).arguments
        # Without the other patch the receiver is verl's, and has met the sender by the time it fails.
        if not given.get("use_shm") or ledger.record("verl.weight_sync_receiver").state not in ("applied", "late"):
            return original(self, *args, **kwargs)
        model = None
        if os.environ.get("XPU_SHIM_WEIGHT_SYNC_VERIFY", "").strip() == "1":
            # An adapter is no part of the model's own parameters.
            adapter = given.get("peft_config") and given.get("base_sync_done")
            model = None if adapter else getattr(getattr(self, "model_runner", None), "model", None)
        with early.told(self._get_zmq_handle), verify.serving(model):
            return original(self, *args, **kwargs)

    return update_weights_from_ipc
