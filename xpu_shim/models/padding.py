"""Taking padding out of a batch and putting it back, with the results and gradients of flash-attn's `bert_padding`.

The semantics are those published at https://github.com/Dao-AILab/flash-attention (flash_attn/bert_padding.py, 2.x):
positions keep their order, row by row; what was padding comes back as zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The rows `indices` of `tensor`.

    Args:
        tensor: (rows, …), at least two dimensions.
        indices: (n,) integers.

    Returns:
        (n, …).

    Raises:
        ValueError: if `tensor` has fewer than two dimensions.
    """
    if tensor.ndim < 2:
        raise ValueError(f"index_first_axis needs a tensor of two or more dimensions, got shape {tuple(tensor.shape)}")
    return tensor.index_select(0, indices)


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """Put rows back to where they were in the padded batch.

    Args:
        hidden_states: (n, …).
        indices: (n,) positions in the flattened batch, each at most once.
        batch: number of sequences.
        seqlen: padded length.

    Returns:
        (batch, seqlen, …), zeros elsewhere.

    Raises:
        ValueError: if the two tensors have different lengths.
    """
    if hidden_states.shape[0] != indices.shape[0]:
        raise ValueError(
            f"pad_input got {hidden_states.shape[0]} rows and {indices.shape[0]} positions; they must be equal"
        )
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return padded.index_copy(0, indices, hidden_states).view(batch, seqlen, *hidden_states.shape[1:])


def unpad_input(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Take the padding out of a batch.

    Args:
        hidden_states: (batch, seqlen, …).
        attention_mask: (batch, seqlen), bool or integer, 1 where a token is.
        unused_mask: (batch, seqlen), 1 where room is kept for a token that is not used.

    Returns:
        The kept rows (n, …); their positions in the flattened batch (n,); cumulative lengths (batch + 1,) int32
        starting at 0; the greatest length; the lengths without unused tokens (batch,) int32.

    Raises:
        ValueError: if a mask does not have the batch's two leading dimensions.
    """
    import torch

    for name, mask in (("attention_mask", attention_mask), ("unused_mask", unused_mask)):
        if mask is not None and mask.shape != hidden_states.shape[:2]:
            raise ValueError(
                f"{name} has shape {tuple(mask.shape)}; it must be (batch, seqlen) = {tuple(hidden_states.shape[:2])}"
            )
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    offsets = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return (
        index_first_axis(hidden_states.reshape(-1, 1, *hidden_states.shape[2:]), indices).squeeze(1),
        indices,
        offsets,
        int(lengths.max()) if lengths.numel() else 0,
        attention_mask.sum(dim=-1, dtype=torch.int32),
    )


def rearrange(*args: Any, **kwargs: Any) -> Any:
    """`einops.rearrange`, which flash-attn re-exports."""
    import einops

    return einops.rearrange(*args, **kwargs)


def functions() -> tuple[Any, Any, Any, Any]:
    """The four in the order in which verl hands them out."""
    return index_first_axis, pad_input, rearrange, unpad_input
