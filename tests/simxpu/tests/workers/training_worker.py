"""verl's own TrainingWorker on XPU ranks, with platform, engine and the AVG cure registered by hand.

    torchrun ... training_worker.py MODEL STRATEGY FSDP_SIZE CHECKPOINTS [stock]

``stock`` leaves the AVG cure out.
"""

import functools
import os
import sys
from contextlib import contextmanager

import torch
import torch.distributed as dist

MODEL, STRATEGY, FSDP_SIZE, CHECKPOINTS = sys.argv[1:5]
STOCK = "stock" in sys.argv[5:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
torch.xpu.set_device(rank)
dist.init_process_group("cpu:gloo,xpu:xccl")

from verl.plugin.platform.platform_base import PlatformBase  # noqa: E402
from verl.plugin.platform.platform_manager import PlatformRegistry  # noqa: E402


@PlatformRegistry.register(platform="xpu")
class Platform(PlatformBase):
    """The least that verl asks of a platform, delegated to torch.xpu."""

    device_name = property(lambda self: "xpu")
    vendor_name = property(lambda self: "intel")
    device_module = property(lambda self: torch.xpu)

    def is_available(self):
        return torch.xpu.is_available()

    def is_platform_available(self, use_smi_check=False):
        return torch.xpu.is_available()

    def current_device(self):
        return torch.xpu.current_device()

    def device_count(self):
        return torch.xpu.device_count()

    def set_device(self, device_index):
        torch.xpu.set_device(device_index)

    def synchronize(self, device_index=None):
        torch.xpu.synchronize(device_index)

    def manual_seed(self, seed):
        torch.xpu.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.xpu.manual_seed_all(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        torch.xpu.empty_cache()

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "xccl"

    def visible_devices_envvar(self):
        return "ZE_AFFINITY_MASK"

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def ray_resource_options(self, n):
        return {"num_gpus": n}

    def is_ipc_supported(self):
        return False

    def rollout_env_vars(self):
        return {}

    def get_collective_module(self):
        return None

    def cudart(self):
        return None


from tensordict import NonTensorData  # noqa: E402
from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.dataset.dataset_utils import DatasetPadMode  # noqa: E402
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig  # noqa: E402
from verl.workers.engine.base import EngineRegistry  # noqa: E402
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead  # noqa: E402
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig  # noqa: E402
from verl.workers.utils.losses import sft_loss  # noqa: E402

EngineRegistry.register("language_model", ["fsdp", "fsdp2"], "xpu")(FSDPEngineWithLMHead)


def no_average_on_the_wire() -> None:
    """SUM and a division wherever torch and verl would send AVG."""
    from torch.distributed.fsdp import FSDPModule
    from verl.utils import fsdp_utils
    from verl.workers.engine.fsdp import transformer_impl

    stock_apply, stock_all_reduce = fsdp_utils.apply_fsdp2, dist.all_reduce

    def apply_fsdp2(model, *args, **kwargs):
        stock_apply(model, *args, **kwargs)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)

    def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        if op != dist.ReduceOp.AVG:
            return stock_all_reduce(tensor, op, group, async_op)
        stock_all_reduce(tensor, dist.ReduceOp.SUM, group)
        return tensor.div_(dist.get_world_size(group))

    fsdp_utils.apply_fsdp2 = transformer_impl.apply_fsdp2 = apply_fsdp2
    dist.all_reduce = all_reduce


if not STOCK:
    no_average_on_the_wire()

precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
worker = TrainingWorker(
    TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=MODEL,
            use_remove_padding=False,
            override_config={"attn_implementation": "sdpa"},
            enable_gradient_checkpointing=True,
        ),
        engine_config=FSDPEngineConfig(
            strategy=STRATEGY,
            model_dtype="fp32",
            fsdp_size=int(FSDP_SIZE),
            use_dynamic_bsz=False,
            micro_batch_size_per_gpu=2,
            infer_micro_batch_size_per_gpu=2,
            use_torch_compile=False,
            param_offload=True,
            optimizer_offload=True,
            mixed_precision=precision,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
)
worker.reset()
worker.set_loss_fn(functools.partial(sft_loss, config=None))

torch.manual_seed(rank)
LENGTHS = [5, 9, 7, 12]


def jagged(make):
    return torch.nested.as_nested_tensor([make(n) for n in LENGTHS], layout=torch.jagged)


batch = tu.get_tensordict(
    tensor_dict={
        "input_ids": jagged(lambda n: torch.randint(0, 126, (n,))),
        "position_ids": jagged(torch.arange),
        "loss_mask": jagged(lambda n: torch.ones(n, dtype=torch.long)),
    },
    non_tensor_dict={
        "pad_mode": DatasetPadMode.NO_PADDING,
        "temperature": 1.0,
        "global_batch_size": 4 * world,
        "pad_token_id": 127,
        "calculate_entropy": False,
    },
)
tu.assign_non_tensor(batch, global_token_num=NonTensorData(LENGTHS * world))
for step in range(3):
    metrics = tu.get(worker.train_batch(batch.clone()), "metrics")
    if rank == 0:
        loss = metrics["loss"]
        sys.stdout.write(f"loss {step} {loss[0] if isinstance(loss, list) else loss}\n")
worker.infer_batch(batch.clone())
worker.save_checkpoint(CHECKPOINTS, global_step=1)
worker.load_checkpoint(CHECKPOINTS)
exported = [name for name, _ in worker.engine.get_per_tensor_param()[0]]
if rank == 0:
    sys.stdout.write(f"exported {len(exported)}\n")
dist.barrier()
dist.destroy_process_group()
