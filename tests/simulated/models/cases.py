"""One start of verl, many questions: every case is a function of this file; what it returns or raises is reported.

torchrun cases.py FOLDER_OF_CHECKPOINTS CASE...
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])


def model_config(checkpoint="plain", **arguments):
    from verl.workers.config import HFModelConfig

    return HFModelConfig(path=str(FOLDER / checkpoint), **arguments)


def engine(config, model_type="language_model", **settings):
    """verl's FSDP engine for one rank, with everything it does before the model is built."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig
    from verl.workers.engine.fsdp import transformer_impl

    return transformer_impl.FSDPEngineWithLMHead(
        config,
        FSDPEngineConfig(strategy="fsdp2", model_dtype="fp32", **settings),
        FSDPOptimizerConfig(lr=1e-3, total_training_steps=10),
        CheckpointConfig(),
    )


def built(config):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(config.local_path, config=config.hf_config)
    return model.config._attn_implementation


def default_attention():
    config = model_config()
    return [built(config), dict(config.override_config), "attn_implementation" in config.hf_config.to_dict()]


def default_of_the_checkpoint():
    return [built(model_config("names_eager")), built(model_config("names_flash"))]


def chosen_attention():
    return [built(model_config(override_config={"attn_implementation": name})) for name in ("eager", "sdpa")]


def chosen_flash_attention():
    return built(model_config(override_config={"attn_implementation": "flash_attention_2"}))


def critic():
    import torch
    from verl.utils.model import load_valuehead_model

    names = []
    for choice in ({}, {"attn_implementation": "sdpa"}, {"attn_implementation": "eager"}):
        config = model_config(override_config=choice)
        config.hf_config.num_labels = 1
        model = load_valuehead_model(config.local_path, torch.float32, config.hf_config, False)
        names += [type(model).__name__, model.config._attn_implementation]
    return names


def critic_that_cannot_load():
    import torch
    from verl.utils.model import load_valuehead_model

    config = model_config()
    return type(load_valuehead_model(str(FOLDER / "missing"), torch.float32, config.hf_config, False)).__name__


def entropy():
    import torch

    built_engine = engine(model_config())
    return built_engine.compute_entropy_from_logits(torch.zeros(3, 4, device="xpu")).tolist()


def entropy_by_a_legacy_actor():
    import torch
    from omegaconf import OmegaConf
    from verl.workers.actor.dp_actor import DataParallelPPOActor

    config = OmegaConf.create(
        {
            "ulysses_sequence_parallel_size": 1,
            "entropy_from_logits_with_chunking": False,
            "fsdp_config": {"dtype": "float32"},
            "use_remove_padding": True,
        }
    )
    actor = DataParallelPPOActor(config, torch.nn.Linear(1, 1), None)
    return actor.compute_entropy_from_logits(torch.zeros(3, 4, device="xpu")).tolist()


def padding():
    import torch
    from verl.utils import attention_utils

    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], device="xpu")
    values = torch.arange(12.0, device="xpu").reshape(3, 4, 1).requires_grad_()
    packed, indices, offsets, longest, used = attention_utils.unpad_input(values, mask)
    back = attention_utils.pad_input(packed, indices, 3, 4)
    (back * 2).sum().backward()
    flat = attention_utils.rearrange(values, "b s ... -> (b s) ...")
    again = attention_utils.index_first_axis(flat, indices)
    return [
        packed.flatten().tolist(),
        offsets.tolist(),
        str(offsets.dtype),
        longest,
        used.tolist(),
        back.flatten().tolist(),
        values.grad.flatten().tolist(),
        torch.equal(again, packed),
    ]


def packed_batch():
    import torch

    torch.manual_seed(0)
    ids = torch.randint(0, 7, (2, 6))
    mask = torch.tensor([[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
    logits = torch.randn(int(mask.sum()), 7)
    return ids.to("xpu"), mask.to("xpu"), logits.to("xpu")


def log_probs_from_padded():
    from verl.utils.torch_functional import log_probs_from_logits_response_rmpad

    return log_probs_from_logits_response_rmpad(*packed_batch(), 3).tolist()


def log_probs_from_packed():
    from verl.utils.torch_functional import log_probs_from_logits_all_rmpad

    ids, mask, logits = packed_batch()
    indices = mask.flatten().nonzero().flatten()
    packed = ids.flatten()[indices].unsqueeze(0)
    return log_probs_from_logits_all_rmpad(packed, logits, indices, 2, 6, 3).tolist()


def log_probs_of_loop():
    """The same, token by token."""
    ids, mask, logits = (tensor.cpu() for tensor in packed_batch())
    places = [(row, column) for row in range(2) for column in range(6) if mask[row, column]]
    out = [[0.0] * 6 for _ in range(2)]
    for index, (row, column) in enumerate(places):
        following = places[(index + 1) % len(places)]
        out[row][column] = logits[index].log_softmax(0)[ids[following]].item()
    return [row[2:5] for row in out]


def log_probs_on_random_batches():
    """Both functions on random ragged batches: values and gradients against a loop over the tokens; batches tried."""
    import torch
    from hypothesis import given, settings
    from hypothesis import strategies as st
    from verl.utils import torch_functional

    columns, vocabulary = 6, 5
    lengths = st.one_of(st.just(0), st.just(columns), st.just(1), st.integers(0, columns))  # empty, full, one token
    tried = []

    @given(st.lists(st.tuples(lengths, st.integers(0, columns)), min_size=1, max_size=4), st.integers(1, 5))
    @settings(deadline=None, max_examples=60, database=None, derandomize=True)
    def agree(rows, response):
        mask = torch.zeros(len(rows), columns, dtype=torch.long)
        for row, (length, start) in enumerate(rows):
            begin = min(start, columns - length)
            mask[row, begin : begin + length] = 1
        generator = torch.Generator().manual_seed(len(tried))
        ids = torch.randint(0, vocabulary, mask.shape, generator=generator)
        places = [tuple(place) for place in mask.nonzero().tolist()]
        logits = torch.randn(len(places), vocabulary, generator=generator, dtype=torch.double)
        weights = torch.randn(len(rows), response, generator=generator, dtype=torch.double)

        mine = logits.clone().requires_grad_()
        expected = [[mine.sum() * 0] * columns for _ in rows]
        for index, (row, column) in enumerate(places):
            following = ids[places[(index + 1) % len(places)]]
            expected[row][column] = mine[index, following] - torch.log(torch.exp(mine[index]).sum())
        loop = torch.stack([torch.stack(row[columns - response - 1 : columns - 1]) for row in expected])
        (loop * weights).sum().backward()

        indices = mask.flatten().nonzero().flatten()
        packed = ids.flatten()[indices].unsqueeze(0)
        for function, first in (
            (torch_functional.log_probs_from_logits_response_rmpad, (ids.to("xpu"), mask.to("xpu"))),
            (torch_functional.log_probs_from_logits_all_rmpad, (packed.to("xpu"),)),
        ):
            theirs = logits.to("xpu").requires_grad_()
            last = (response,) if len(first) == 2 else (indices.to("xpu"), *mask.shape, response)
            values = function(*first, theirs, *last)
            torch.testing.assert_close(values.detach().cpu(), loop.detach(), atol=1e-6, rtol=0)
            (values * weights.to("xpu")).sum().backward()
            torch.testing.assert_close(theirs.grad.cpu(), mine.grad, atol=1e-6, rtol=0)
        tried.append(len(places))

    agree()
    return [len(tried), min(tried), max(tried)]


def vision_attention(name):
    """verl's own attention against attention of each sequence alone: two packed sequences, and a padded batch."""
    import importlib

    import torch

    module = importlib.import_module(f"verl.models.transformers.{name}")
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 9, 4, 8, device="xpu", requires_grad=True) for _ in range(3))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]], device="xpu")
    packed = module._custom_flash_attention_forward(q, k, v, None, 9, position_ids=positions)
    separate = torch.cat([plain_attention(*(t[:, part] for t in (q, k, v))) for part in (slice(0, 4), slice(4, 9))], 1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1]], device="xpu")
    padded = module._custom_flash_attention_forward(q, k, v, mask, 9, position_ids=None)
    alone = plain_attention(*(tensor[:, 2:] for tensor in (q, k, v)))
    weight = torch.randn_like(packed)
    gradients = [torch.autograd.grad((out * weight).sum(), (q, k, v)) for out in (packed, separate)]
    return max(
        (packed - separate).abs().max().item(),
        (padded[:, 2:] - alone).abs().max().item(),
        padded[:, :2].abs().max().item(),
        *((a - b).abs().max().item() for a, b in zip(*gradients, strict=True)),
    )


def plain_attention(q, k, v):
    import torch

    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    length = q.shape[1]
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


def vision_attention_qwen2_vl():
    return vision_attention("qwen2_vl")


def vision_attention_glm4v():
    return vision_attention("glm4v")


def remove_padding_kept():
    config = model_config()
    return [engine(config).use_remove_padding, config.use_remove_padding]


def remove_padding_with_a_leak():
    """As with a transformers that does not see where packed sequences begin."""
    from transformers import masking_utils

    from xpu_shim.models import packing

    original = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda *arguments, **named: None
    try:
        packing._known.clear()
        first, second = model_config(), model_config()
        return [
            engine(first).use_remove_padding,
            first.use_remove_padding,
            engine(second).use_remove_padding,
            [line for line in kept.lines if "use_remove_padding" in line],
        ]
    finally:
        masking_utils.find_packed_sequence_indices = original
        packing._known.clear()


def sequence_parallel():
    return engine(model_config(), ulysses_sequence_parallel_size=2).use_ulysses_sp


def figures():
    from verl.utils.flops_counter import get_device_flops

    names = ("Arc(TM) Pro A40/A50 Graphics", "Arc(TM) Pro B60 Graphics", "Data Center GPU Max 1550")
    return [str(get_device_flops(device_name=f"Intel(R) {name}")) for name in names] + [
        str(get_device_flops()),
        str(get_device_flops("G")),
        str(get_device_flops(device_name="NVIDIA A40")),
    ]


def memory():
    """The figures verl logs, with something on the second device only."""
    import torch
    from verl.utils.memory_utils import get_memory_info
    from verl.utils.profiler.performance import _get_current_mem_info

    torch.xpu.set_device(1)
    kept_alive = torch.ones(64 * 2**20, dtype=torch.uint8, device="xpu:1")
    try:
        on_second = [_get_current_mem_info("MB", 0)[0], round(get_memory_info()["allocated_memory_gb"] * 1024)]
        torch.xpu.set_device(0)
        return [*on_second, kept_alive.device.index, int(_get_current_mem_info("MB", 0)[0]) < 64]
    finally:
        torch.xpu.set_device(0)


def determinism():
    import torch
    from verl.workers.engine.utils import enable_full_determinism

    draws = []
    for _ in range(2):
        enable_full_determinism(7)
        draws.append(torch.rand(3, device="xpu").tolist())
    torch.use_deterministic_algorithms(False)
    return draws[0] == draws[1]


def checkpoint_in_host_memory():
    from verl.utils.checkpoint import fsdp_checkpoint_manager

    return fsdp_checkpoint_manager.is_cuda_available


def synchronized_copy():
    """How often the device was waited for while a TensorDict was copied to host memory."""
    import torch
    from tensordict import TensorDict

    count = 0
    original = torch.xpu.synchronize

    def counted(*arguments):
        nonlocal count
        count += 1
        return original(*arguments)

    batch = TensorDict({"a": torch.ones(3, device="xpu")}, [3])
    torch.xpu.synchronize = counted
    try:
        batch.to("cpu")
    finally:
        torch.xpu.synchronize = original
    return count


def packed_against_separate():
    """Greatest difference of log-probabilities, by family, with what the shim chooses and leaves on."""
    import torch
    from transformers import AutoModelForCausalLM
    from verl.utils.attention_utils import index_first_axis, unpad_input

    differences = {}
    for family in ("Qwen2", "Qwen3", "Llama"):
        config = model_config(family)
        assert engine(config).use_remove_padding
        model = AutoModelForCausalLM.from_pretrained(config.local_path, config=config.hf_config).to("xpu").eval()
        torch.manual_seed(0)
        mask = (torch.arange(9) < torch.tensor([[9], [1], [4]])).long().to("xpu")
        ids = torch.randint(0, 126, (3, 9), device="xpu")
        positions = torch.arange(9, device="xpu").expand(3, 9)
        packed, indices, offsets, *_ = unpad_input(ids.unsqueeze(-1), mask)
        places = index_first_axis(positions.reshape(-1, 1), indices)
        with torch.no_grad():
            together = model(
                input_ids=packed.T, position_ids=places.T, attention_mask=None, use_cache=False
            ).logits.log_softmax(-1)[0]
            alone = [
                model(input_ids=packed.T[:, a:b], use_cache=False).logits.log_softmax(-1)[0]
                for a, b in zip(offsets.tolist(), offsets.tolist()[1:], strict=False)
            ]
        differences[family] = (together - torch.cat(alone)).abs().max().item()
    return differences


def offload_where_addresses_overflow():
    """FSDP1 offload while `data_ptr()` of XPU tensors raises, as torch did before 2.11: verl's and the shim's."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel
    from verl.utils import fsdp_utils

    from xpu_shim.models.offload import without_assertions

    torch.distributed.is_initialized() or engine(model_config())
    torch.manual_seed(0)
    model = FullyShardedDataParallel(torch.nn.Linear(4, 4).to("xpu"), device_id=torch.device("xpu", 0))
    model(torch.ones(1, 4, device="xpu"))
    before = [parameter.detach().cpu().clone() for parameter in model.parameters()]
    original = torch.Tensor.data_ptr

    def overflows(tensor):
        if tensor.device.type == "xpu":
            raise OverflowError("Python int too large to convert to C long")
        return original(tensor)

    answers = []
    torch.Tensor.data_ptr = overflows
    try:
        stock = fsdp_utils.offload_fsdp_model_to_cpu
        for function in (stock, without_assertions(stock)):
            try:
                function(model)
                answers.append([str(parameter.device) for parameter in model.parameters()])
            except OverflowError as error:
                answers.append(f"OverflowError: {error}")
    finally:
        torch.Tensor.data_ptr = original
    fsdp_utils.load_fsdp_model_to_gpu(model)
    after = list(model.parameters())
    same = all(torch.equal(a, b.detach().cpu()) for a, b in zip(before, after, strict=True))
    return [*answers, same, after[0].device.type]


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


kept = Lines()


def main() -> None:
    import verl
    from verl.utils.distributed import initialize_global_process_group

    logging.getLogger("xpu_shim").addHandler(kept)
    answers = {"verl": verl.__version__}
    names = sys.argv[2:]
    initialize_global_process_group()
    for name in names:
        try:
            answers[name] = globals()[name]()
        except Exception as error:
            answers[name] = f"{type(error).__name__}: {error}"
    sys.stdout.write(f"REPORT {json.dumps(answers, default=str)}\n")  # in one piece, unlike print


if __name__ == "__main__":
    main()
