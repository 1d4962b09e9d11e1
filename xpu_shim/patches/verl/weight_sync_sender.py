"""The training rank's end of verl's weight sync through shared memory."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.weight_sync_sender",
    targets=("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender.async_send_weights",),
    why=(
        "Intel GPUs have no tensor IPC, so verl copies weights through shared memory, one bucket at a time. The trainer "
        "waits for ever in `socket.recv()` if the receiver fails or dies, and blocks its event loop meanwhile; is killed by "
        "SIGBUS on a short /dev/shm; and raises `AssertionError: Weight … is too large to fit in the bucket` on a tensor "
        "larger than update_weights_bucket_megabytes. Every sync touches a new segment page by page, at a tenth of the "
        "speed of memory."
    ),
    how=(
        "With use_shm=True the method sends through xpu_shim.weights: every wait has a limit, the receiver's error is raised "
        "in the trainer at once, tensors of any size and dtype pass, and a small segment is reused. A receiver without the "
        "shim is recognised and served in verl's own protocol. With use_shm=False upstream's method runs as it is."
    ),
    upstream=(
        "https://github.com/volcengine/verl/blob/main/verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py",
    ),
    remove_when="verl's shared-memory path has timeouts, carries the receiver's error and splits large tensors.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker", "rollout"),
)


def apply(install: Install) -> None:
    import xpu_shim.weights.sender  # noqa: F401  here rather than in the first sync

    install.replace("BucketedWeightSender.async_send_weights", through_weights(install.module))


def through_weights(module):
    def make(original):
        async def async_send_weights(self, weights):
            if not self.use_shm:
                return await original(self, weights)
            from verl.workers.rollout.utils import ensure_async_iterator

            from xpu_shim.weights.sender import send_weights

            try:
                await send_weights(self.zmq_handle, self.bucket_size, ensure_async_iterator(weights))
            except Exception as error:
                from xpu_shim.doctor.explain import explain

                explain(error)
                raise
            finally:
                module.get_torch_device().empty_cache()

        return async_send_weights

    return make
