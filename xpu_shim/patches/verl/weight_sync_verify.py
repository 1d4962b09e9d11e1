"""The rollout's worker names the model that a weight sync loads into, so that the sync can be verified."""

from __future__ import annotations

import os

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.weight_sync_verify",
    targets=("verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension.update_weights_from_ipc",),
    why=(
        "Nothing in a run says whether the weights vLLM serves are the trainer's: a loader that skips a name, a wrong "
        "shard or a stale copy shows only as a reward that does not rise, or as probabilities that drift apart."
    ),
    how=(
        "With XPU_SHIM_WEIGHT_SYNC_VERIFY=1 every sync compares checksums of all tensors at both ends, and the bytes of the "
        "served model with what was loaded; a difference is an error that names the tensors. Not installed otherwise."
    ),
    upstream=("https://github.com/volcengine/verl/blob/main/verl/workers/rollout/vllm_rollout/utils.py",),
    remove_when="verl can verify a sync itself.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker", "rollout"),
)


def apply(install: Install) -> None:
    if os.environ.get("XPU_SHIM_WEIGHT_SYNC_VERIFY") != "1":
        install.skip("XPU_SHIM_WEIGHT_SYNC_VERIFY is not 1")
    install.replace("vLLMColocateWorkerExtension.update_weights_from_ipc", naming_the_model)


def naming_the_model(original):
    def update_weights_from_ipc(self, *args, **kwargs):
        from xpu_shim.weights import verify

        # An adapter is no part of the model's own parameters.
        adapter = (kwargs.get("peft_config") or (args and args[0])) and (
            kwargs.get("base_sync_done") or (len(args) > 1 and args[1])
        )
        with verify.serving(None if adapter else getattr(self.model_runner, "model", None)):
            return original(self, *args, **kwargs)

    return update_weights_from_ipc
