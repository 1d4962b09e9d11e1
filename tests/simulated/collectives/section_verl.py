"""verl's own functions on a stack that divides small averages twice and returns the sum for MIN and MAX."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist
from context import describe, patched
from omegaconf import OmegaConf

if TYPE_CHECKING:
    from context import Context

#: This rank; set by `rows`.
c: Any = None


def rows(context: Context) -> dict[str, Any]:
    """Function to `off`, `on` and `right`."""
    from xpu_shim.core.apply import apply_patch

    global c
    c = context
    apply_patch("verl.platform")
    report: dict[str, Any] = {name: {"off": outcome(function)} for name, function in FUNCTIONS.items()}
    with patched():
        for name, function in FUNCTIONS.items():
            report[name]["on"] = outcome(function)
    for name in MICRO_BATCHES:
        # The same function, all on the CPU: gloo's MIN and MAX.
        with mock.patch("verl.utils.seqlen_balancing.get_device_name", return_value="cpu"):
            report[name]["right"] = outcome(FUNCTIONS[name])
    return report


def outcome(function: Any) -> Any:
    try:
        seen = function()
    except Exception as error:
        seen = describe(error)
    dist.barrier(group=c.cpu_group)
    return seen


def engine() -> Any:
    """As much of a verl engine as the functions ask for."""
    return SimpleNamespace(
        get_data_parallel_group=lambda: c.group,
        get_data_parallel_rank=lambda: c.rank,
        get_data_parallel_size=lambda: c.ranks,
        is_mp_src_rank_with_outputs=lambda: True,
    )


def loss_aggregation() -> float:
    """`TrainingWorker._postprocess_output`: the loss that is logged. The average of rank + 1."""
    from verl.workers.engine_workers import TrainingWorker

    worker = SimpleNamespace(device_name=c.device("xpu"), engine=engine(), flops_counter=None)
    output = {"loss": [0.25 * (c.rank + 1)] * 4, "metrics": {}}
    result = TrainingWorker._postprocess_output(
        worker, output, global_token_num=None, delta_time=1.0, forward_only=False, images_seqlens=None
    )
    return result["metrics"]["loss"]


def timing() -> dict[str, float]:
    """`reduce_timing`: the average of (rank + 1) and of twice that."""
    from verl.utils.profiler.performance import reduce_timing

    return reduce_timing({"step": c.rank + 1.0, "generate": 2.0 * (c.rank + 1)})


def validation_loss() -> float:
    """`SFTTrainer.fit`, one step of it with a validation: the loss it logs. The average of rank + 1."""
    from verl.trainer import sft_trainer
    from verl.utils import tensordict_utils

    def ran(loss: float) -> Any:
        return tensordict_utils.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": {"loss": loss}})

    logged: dict[str, float] = {}
    batch = {"input_ids": torch.ones(2, 4, dtype=torch.long)}
    trainer = SimpleNamespace(
        engine=engine(),
        rank=c.rank,
        device_name=c.device("xpu"),
        config=OmegaConf.create(
            {
                "trainer": {"project_name": "p", "experiment_name": "e", "logger": ["console"], "total_epochs": 1},
                "model": {"use_remove_padding": True},
                "data": {
                    "use_dynamic_bsz": False,
                    "max_token_len_per_gpu": 8,
                    "micro_batch_size_per_gpu": 2,
                    "pad_mode": "no_padding",
                },
            }
        ),
        model_config=SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=0)),
        resume_global_step=0,
        total_training_steps=1,
        steps_per_epoch=1,
        global_batch_size=2 * c.ranks,
        start_profile_step=-1,
        end_profile_step=-1,
        test_freq=1,
        save_freq=-1,
        train_sampler=mock.Mock(),
        train_dataloader=[batch],
        val_dataloader=[batch, batch],
        training_client=mock.Mock(
            train_batch=lambda data: ran(0.0),
            infer_batch=lambda data: ran(c.rank + 1.0),
        ),
        ckpt_handler=mock.Mock(),
        _get_batch_seqlens=lambda data: [4, 4],
    )
    tracking = SimpleNamespace(log=lambda data, step: logged.update(data))
    with mock.patch.object(sft_trainer, "Tracking", return_value=tracking):
        sft_trainer.SFTTrainer.fit(trainer)
    # Only rank 0 logs.
    return logged["val/loss"] if c.rank == 0 else (c.ranks + 1) / 2


def micro_batches(lengths: list[list[int]], limit: int) -> list[list[int]]:
    """`rearrange_micro_batches` for sequences of these lengths (by rank, repeated for further ranks)."""
    from tensordict import TensorDict
    from verl.utils.seqlen_balancing import rearrange_micro_batches

    own = torch.tensor(lengths[c.rank % len(lengths)])
    mask = (torch.arange(int(own.max()))[None, :] < own[:, None]).long()
    batch = TensorDict({"input_ids": mask.clone(), "attention_mask": mask}, batch_size=[len(own)])
    return rearrange_micro_batches(batch, max_token_len=limit, dp_group=c.group)[1]


def statistics() -> list[float]:
    """`distributed_mean_max_min_std` of rank + 1."""
    from verl.utils.torch_functional import distributed_mean_max_min_std

    local = torch.tensor([c.rank + 1.0], device=c.device("xpu"))
    return [value.item() for value in distributed_mean_max_min_std(local, True, True, False)[:3]]


MICRO_BATCHES = {
    # The number of micro batches: one rank needs two, the other three. Their sum is no more than either has sequences:
    # else one rank would raise and leave the other waiting for it.
    "micro_batch_count": lambda: micro_batches([[4] * 6, [5] * 6], 12),
    # The longest sequence: within the limit on every rank, the sum of them is not.
    "longest_sequence": lambda: micro_batches([[9, 1, 1, 1, 1, 1], [8, 2, 1, 1, 1, 1]], 12),
    # Whether it fits: four times 6 fit into two batches of 12, on the other rank 24 tokens do not.
    "fits_everywhere": lambda: micro_batches([[6] * 4, [5, 5, 5, 5, 4]], 12),
}

FUNCTIONS = {
    "loss_aggregation": loss_aggregation,
    "timing": timing,
    "validation_loss": validation_loss,
    "statistics": statistics,
    **MICRO_BATCHES,
}
