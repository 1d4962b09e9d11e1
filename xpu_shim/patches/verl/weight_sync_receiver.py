"""The rollout engine's end of verl's weight sync through shared memory."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.weight_sync_receiver",
    targets=("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightReceiver.receive_weights",),
    why=(
        "If loading a weight raises, the receiver never answers and the trainer waits for ever: a run stalls `at the same "
        "byte offset` each time. A callback that keeps a tensor, or any error, ends in `BufferError: cannot close exported "
        "pointers exist`, which hides the real one; two receivers at one address end in `KeyError: 'name'`; before verl "
        "0.9.1 a tensor behind one of another dtype raises for its alignment."
    ),
    how=(
        "With use_shm=True the method receives through xpu_shim.weights: the sender learns of the error with its traceback, "
        "the tensors given to the callback are its own, copying and loading overlap, and every wait has a limit. A sender "
        "without the shim is recognised and served. With use_shm=False upstream's method runs as it is."
    ),
    upstream=(
        "https://github.com/volcengine/verl/blob/main/verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py",
    ),
    remove_when="verl's shared-memory path reports the receiver's error to the sender and has timeouts.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker", "rollout"),
)


def apply(install: Install) -> None:
    import xpu_shim.weights.receiver  # noqa: F401  here rather than in the first sync

    install.replace("BucketedWeightReceiver.receive_weights", through_weights(install.module))


def through_weights(module):
    def make(original):
        def receive_weights(self, on_bucket_received):
            if not self.use_shm:
                return original(self, on_bucket_received)
            from xpu_shim.weights import receiver

            try:
                receiver.receive_weights(
                    self.zmq_handle, self.device, on_bucket_received, receiver.takes_last(on_bucket_received, original)
                )
            except Exception as error:
                from xpu_shim.doctor.explain import explain

                explain(error)
                raise
            finally:
                module.get_torch_device().empty_cache()

        return receive_weights

    return make
