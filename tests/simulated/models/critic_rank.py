"""A rank of PPO's critic: two steps of verl's TrainingWorker with a value head, and a checkpoint.

torchrun critic_rank.py CHECKPOINT STRATEGY FOLDER [offload]
"""

from __future__ import annotations

import functools
import json
import os
import sys

import torch
import torch.distributed as dist
from small_critic_batch import batch
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.utils.distributed import initialize_global_process_group
from verl.workers.config import FSDPCriticConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.losses import value_loss


def main() -> None:
    checkpoint, strategy, folder = sys.argv[1:4]
    offload = sys.argv[4:] == ["offload"]
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the value head is new in every process that builds it
    initialize_global_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dtypes = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="value_model",
            # No attention implementation is named anywhere.
            model_config=HFModelConfig(path=checkpoint, model_type="value_model", use_remove_padding=True),
            engine_config=FSDPEngineConfig(
                strategy=strategy,
                model_dtype="fp32",
                mixed_precision=dtypes,
                param_offload=offload,
                optimizer_offload=offload,
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=2,
                infer_micro_batch_size_per_gpu=2,
            ),
            optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    settings = FSDPCriticConfig.__dataclass_fields__
    config = type("Config", (), {name: settings[name].default for name in ("cliprange_value", "loss_agg_mode")})
    config.loss_scale_factor = None
    worker.set_loss_fn(functools.partial(value_loss, config=config))
    data = batch(rank, ranks)
    steps = []
    for _ in range(2):
        metrics = tensordict_utils.get(worker.train_batch(data.clone()), "metrics")
        steps.append([metrics[name] for name in ("loss", "grad_norm", "mfu")] if rank == 0 else None)
    resting = {
        "moments": device_types([dict(state, step=None) for state in worker.engine.optimizer.state.values()]),
        "parameters": device_types(list(worker.engine.module.parameters())),
    }
    values = worker.infer_batch(data.clone())["values"] if rank == 0 else worker.infer_batch(data.clone())
    devices = {}
    save = torch.save

    def watched(content, file, *arguments, **named):
        devices[os.path.basename(file).split("_")[0]] = sorted(device_types(content))
        return save(content, file, *arguments, **named)

    torch.save = watched
    try:
        worker.save_checkpoint(folder, global_step=1)
    finally:
        torch.save = save
    worker.load_checkpoint(folder)
    dist.barrier()
    if rank == 0:
        model = worker.engine.module
        report = {
            "steps": steps,
            "class": type(model).__name__,
            "device": next(model.parameters()).device.type,
            "values": list(values.values().shape),
            "saved from": devices,
            "between steps": {name: sorted(kinds) for name, kinds in resting.items()},
        }
        sys.stdout.write(f"REPORT {json.dumps(report, default=str)}\n")  # in one piece, unlike print
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # what verl left running must not keep the launcher waiting


def device_types(content):
    """Where the tensors in a nest of containers and sharded tensors are."""
    from torch.distributed._shard.sharded_tensor import ShardedTensor

    if isinstance(content, ShardedTensor):
        return {shard.tensor.device.type for shard in content.local_shards()}
    if isinstance(content, torch.Tensor):
        local = content.to_local() if hasattr(content, "to_local") else content
        return {local.device.type} if local.dim() else set()
    if isinstance(content, dict):
        content = content.values()
    elif not isinstance(content, (list, tuple)):
        return set()
    return set().union(*(device_types(item) for item in content))


if __name__ == "__main__":
    main()
