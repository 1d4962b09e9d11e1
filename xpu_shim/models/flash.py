"""flash-attn's two public functions, computed by PyTorch's scaled dot product attention on any device.

For code that calls them directly. The semantics are those documented for flash-attn 2.1 and newer
(https://github.com/Dao-AILab/flash-attention, flash_attn/flash_attn_interface.py): with `causal`, the mask is aligned
to the bottom right corner, so the last query sees all keys; rows that see no key are zero; fewer key heads than query
heads are shared among them; `window_size=(left, right)` limits a query at (aligned) position i to keys
i - left … i + right, -1 being no limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def visible_keys(queries: int, keys: int, causal: bool, window: tuple[int, int], device: Any) -> torch.Tensor | None:
    """Which keys a query sees, (queries, keys) bool, True where it does; None if all see all."""
    import torch

    left, right = window
    if causal:
        right = 0 if right < 0 else min(right, 0)
    if left < 0 and right < 0:
        return None
    position = torch.arange(queries, device=device).unsqueeze(1) + (keys - queries)
    key = torch.arange(keys, device=device)
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if left >= 0:
        seen &= key >= position - left
    if right >= 0:
        seen &= key <= position + right
    return seen


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: torch.Tensor | None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Attention of one batch in flash-attn's layout.

    Args:
        q: (batch, queries, heads, head size).
        k: (batch, keys, key heads, head size); heads is a multiple of key heads.
        v: like k.
        seen: bool, broadcastable to (batch, heads, queries, keys), True where a key is visible; None for all.
        causal: only with `seen` None and as many keys as queries.
        dropout: probability of dropping a weight.
        scale: factor of the scores; None is 1/sqrt(head size).
        softcap: if positive, scores become softcap * tanh(score / softcap).

    Returns:
        (batch, queries, heads, head size) in q's dtype; zero for queries that see no key.
    """
    import torch

    groups = q.shape[2] // k.shape[2]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=2), v.repeat_interleave(groups, dim=2)
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    if softcap > 0:
        scores = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = softcap * torch.tanh(scores / softcap)
        if causal:
            seen = visible_keys(q.shape[2], k.shape[2], True, (-1, -1), q.device)
        if seen is not None:
            # Not -inf: the softmax of a row of them is NaN, and so is its gradient.
            scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        exact = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        weights = torch.nn.functional.dropout(exact.softmax(-1).to(q.dtype), dropout)
        out = weights @ v
    else:
        mask = seen
        if seen is not None:
            mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device)
            mask = mask.masked_fill(~seen, torch.finfo(q.dtype).min)
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal and seen is None, scale=scale
        )
    if seen is not None:
        out = out.masked_fill(~seen.any(-1, keepdim=True), 0.0)
    return out.transpose(1, 2)


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> torch.Tensor:
    """Attention of padded sequences: q (batch, queries, heads, head size), k and v (batch, keys, key heads, head size).

    Raises:
        ValueError: for `alibi_slopes` or `return_attn_probs`.
    """
    _refuse(alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs)
    queries, keys = q.shape[1], k.shape[1]
    plain = causal and queries == keys and tuple(window_size) == (-1, -1)
    seen = None if plain else visible_keys(queries, keys, causal, window_size, q.device)
    return attention(q, k, v, seen, plain, dropout_p, softmax_scale, softcap)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention within each of several packed sequences.

    Args:
        q: (all queries, heads, head size).
        k: (all keys, key heads, head size).
        v: like k.
        cu_seqlens_q: (sequences + 1,) int32, where each sequence's queries begin, and the end.
        cu_seqlens_k: the same for keys.

    Returns:
        (all queries, heads, head size).

    Raises:
        ValueError: for `alibi_slopes`, `return_attn_probs` or `block_table`.
    """
    import torch

    _refuse(alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs, block_table=block_table)
    starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    parts = []
    for index in range(len(starts_q) - 1):
        queries = q[starts_q[index] : starts_q[index + 1]]
        rows = slice(starts_k[index], starts_k[index + 1])
        if queries.shape[0] == 0:
            continue
        if rows.start == rows.stop:
            parts.append(_nothing_seen(queries, k, v))
            continue
        parts.append(
            flash_attn_func(
                queries.unsqueeze(0),
                k[rows].unsqueeze(0),
                v[rows].unsqueeze(0),
                dropout_p,
                softmax_scale,
                causal,
                window_size,
                softcap,
            ).squeeze(0)
        )
    return torch.cat(parts) if parts else _nothing_seen(q, k, v)


def _nothing_seen(queries: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Zeros for queries that see no key, in the graph of all three: a batch of only these still has gradients (zero)."""
    import torch

    everything = torch.ones_like(queries, dtype=torch.bool)
    return queries.masked_fill(everything, 0.0) + k[:0].sum() + v[:0].sum()


def flash_attention_forward(
    query_states: torch.Tensor,
    key_states: torch.Tensor,
    value_states: torch.Tensor,
    attention_mask: torch.Tensor | None,
    query_length: int,
    is_causal: bool = True,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softmax_scale: float | None = None,
    softcap: float | None = None,
    **ignored: Any,
) -> torch.Tensor:
    """transformers' `_flash_attention_forward` for padded batches.

    Args:
        query_states: (batch, queries, heads, head size); key_states and value_states likewise.
        attention_mask: (batch, keys), 1 where a token is; or what transformers made for sdpa or eager,
            (batch, 1, queries, keys), bool or added to the scores; or None.

    Returns:
        (batch, queries, heads, head size); zero where the query is padding.
    """
    import torch

    queries, keys = query_states.shape[1], key_states.shape[1]
    window = (-1, -1) if sliding_window is None or keys <= sliding_window else (sliding_window, sliding_window)
    plain = is_causal and queries == keys and window == (-1, -1)
    if attention_mask is None:
        seen = None if plain else visible_keys(queries, keys, is_causal, window, query_states.device)
    else:
        plain = False
        seen = visible_keys(queries, keys, is_causal, window, query_states.device)
        if attention_mask.ndim == 4:
            mask = attention_mask[..., :keys]
            given = mask if mask.dtype == torch.bool else mask >= 0
        else:
            valid = attention_mask[:, -keys:].bool()
            given = valid[:, None, None, :] & valid[:, None, -queries:, None]
        seen = given if seen is None else given & seen
    return attention(query_states, key_states, value_states, seen, plain, dropout, softmax_scale, softcap or 0.0)


def one_dtype(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, target_dtype: Any = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """transformers' `fa_peft_integration_check` for kernels that take any dtype.

    flash-attn needs half precision, so upstream casts to `target_dtype`. Here only the rotary embedding's float32 is
    taken back: the value, which does not go through it, has the dtype the layer computes in.
    """
    return query.to(value.dtype), key.to(value.dtype), value


def _refuse(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise ValueError(f"{name} is not supported by the XPU replacement of flash-attn; leave it out")
