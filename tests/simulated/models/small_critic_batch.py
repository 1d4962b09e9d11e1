"""Four short prompts with responses, values and returns, as verl hands them to a critic."""

from __future__ import annotations

import torch
from tensordict import NonTensorData
from verl.utils import tensordict_utils
from verl.utils.dataset.dataset_utils import DatasetPadMode

#: Prompt and response lengths.
LENGTHS = ((3, 5), (4, 2), (1, 6), (2, 4))


def nested(parts):
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def batch(rank: int, ranks: int):
    """The batch of one rank, seeded by its number."""
    torch.manual_seed(rank)
    ids = [torch.randint(0, 126, (prompt + response,)) for prompt, response in LENGTHS]
    ones = [torch.ones(response, dtype=torch.long) for _, response in LENGTHS]
    loss_mask = [torch.cat([torch.zeros(p, dtype=torch.long), one]) for (p, _), one in zip(LENGTHS, ones, strict=True)]
    data = tensordict_utils.get_tensordict(
        tensor_dict={
            "input_ids": nested(ids),
            "prompts": nested([part[:prompt] for part, (prompt, _) in zip(ids, LENGTHS, strict=True)]),
            "responses": nested([part[prompt:] for part, (prompt, _) in zip(ids, LENGTHS, strict=True)]),
            "position_ids": nested([torch.arange(len(part)) for part in ids]),
            "loss_mask": nested(loss_mask),
            "response_mask": nested(ones),
            "values": nested([torch.zeros(response) for _, response in LENGTHS]),
            "returns": nested([torch.randn(response) for _, response in LENGTHS]),
        },
        non_tensor_dict={
            "pad_mode": DatasetPadMode.NO_PADDING,
            "temperature": 1.0,
            "global_batch_size": len(LENGTHS) * ranks,
            "pad_token_id": 127,
        },
    )
    tokens = [prompt + response for prompt, response in LENGTHS]
    tensordict_utils.assign_non_tensor(data, global_token_num=NonTensorData(tokens * ranks))
    return data
