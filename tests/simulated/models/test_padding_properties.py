"""Padding helpers and the stand-ins of flash-attn against plain loops, on random ragged batches: values, gradients."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_shim.models import flash, padding


@st.composite
def batches(draw):
    """(mask, values, weights): any mask, rows without a token and full rows included."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    kinds = draw(st.lists(st.sampled_from(["any", "empty", "full", "left", "right"]), min_size=rows, max_size=rows))
    mask = torch.zeros(rows, columns, dtype=torch.long)
    for row, kind in enumerate(kinds):
        if kind == "full":
            mask[row] = 1
        elif kind == "any":
            mask[row] = torch.tensor(draw(st.lists(st.integers(0, 1), min_size=columns, max_size=columns)))
        elif kind != "empty":
            length = draw(st.integers(1, columns))
            mask[row, slice(columns - length, None) if kind == "left" else slice(length)] = 1
    tail = draw(st.sampled_from([(), (1,), (2, 3)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return mask, *(torch.randn(rows, columns, *tail, generator=generator, dtype=torch.double) for _ in range(2))


@given(batches(), st.sampled_from([torch.long, torch.bool, torch.int32]))
@settings(deadline=None, max_examples=150)
def test_unpadding_and_padding_equal_a_loop(batch, dtype):
    mask, values, weights = batch
    values.requires_grad_()
    places = [tuple(place) for place in mask.nonzero().tolist()]
    packed, indices, offsets, longest, used = padding.unpad_input(values, mask.to(dtype))
    lengths = [sum(row) for row in mask.tolist()]
    assert packed.shape == (len(places), *values.shape[2:])
    assert all(torch.equal(packed[n], values[place]) for n, place in enumerate(places))
    assert indices.tolist() == [row * mask.shape[1] + column for row, column in places]
    assert offsets.tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    assert (offsets.dtype, used.dtype) == (torch.int32, torch.int32)
    assert (longest, used.tolist()) == (max(lengths), lengths)

    back = padding.pad_input(packed * packed, indices, *mask.shape)
    expected = torch.zeros_like(values)
    for place in places:
        expected[place] = values.detach()[place] ** 2
    torch.testing.assert_close(back, expected, atol=1e-6, rtol=0)
    (back * weights).sum().backward()
    gradient = torch.zeros_like(values)
    for place in places:
        gradient[place] = 2 * values.detach()[place] * weights[place]
    torch.testing.assert_close(values.grad, gradient, atol=1e-6, rtol=0)


@given(batches(), st.integers(0, 99))
@settings(deadline=None, max_examples=50)
def test_room_for_unused_tokens_is_kept_but_not_counted(batch, seed):
    mask, values, _ = batch
    unused = (torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed)) < 0.5).long() * (1 - mask)
    packed, indices, offsets, _, used = padding.unpad_input(values, mask, unused)
    assert indices.tolist() == (mask + unused).flatten().nonzero().flatten().tolist()
    assert offsets[-1] == packed.shape[0]
    assert used.tolist() == mask.sum(-1).tolist()


def loop(q, k, v, causal, window, scale, softcap):
    """Attention of one sequence, score by score: q (queries, heads, size), k and v (keys, key heads, size)."""
    out = torch.zeros_like(q)
    shift, groups = len(k) - len(q), q.shape[1] // k.shape[1]
    left, right = window
    rows = []
    for i in range(len(q)):
        seen = [
            j
            for j in range(len(k))
            if (not causal or j <= i + shift)
            and (left < 0 or j >= i + shift - left)
            and (right < 0 or j <= i + shift + right)
        ]
        heads = []
        for h in range(q.shape[1]):
            if not seen:
                heads.append(out[i, h] * 0)
                continue
            scores = torch.stack([(q[i, h] * k[j, h // groups]).sum() for j in seen]) * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            heads.append(sum(w * v[j, h // groups] for w, j in zip(scores.softmax(0), seen, strict=True)))
        rows.append(torch.stack(heads))
    return torch.stack(rows) if rows else out


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([(-1, -1), (1, 1), (0, -1), (2, 0)]),
    st.sampled_from([(1, 1), (2, 1), (2, 2)]),
    st.sampled_from([None, 0.3]),
    st.sampled_from([0.0, 2.0]),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_packed_attention_equals_a_loop(lengths, causal, window, heads, scale, softcap, seed):
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (sum(pair[n] for pair in lengths) for n in (0, 1))
    q = torch.randn(queries, heads[0], 4, generator=generator, dtype=torch.double, requires_grad=True)
    k, v = (
        torch.randn(keys, heads[1], 4, generator=generator, dtype=torch.double, requires_grad=True) for _ in range(2)
    )
    starts = [torch.tensor([sum(pair[n] for pair in lengths[:m]) for m in range(len(lengths) + 1)]) for n in (0, 1)]
    got = flash.flash_attn_varlen_func(
        q, k, v, *starts, softmax_scale=scale, causal=causal, window_size=window, softcap=softcap
    )
    parts = []
    for n in range(len(lengths)):
        (a, b), (c, d) = starts[0][n : n + 2].tolist(), starts[1][n : n + 2].tolist()
        parts.append(loop(q[a:b], k[c:d], v[c:d], causal, window, 0.5 if scale is None else scale, softcap))
    expected = torch.cat(parts)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)
    weight = torch.randn(got.shape, generator=generator, dtype=torch.double)
    if queries and keys:
        # Where no query sees a key the loop computes nothing; its gradients are zero, as flash-attn's are.
        gradients = [
            torch.autograd.grad((out * weight).sum(), (q, k, v), allow_unused=True)
            if out is got or out.requires_grad
            else (None, None, None)
            for out in (got, expected)
        ]
        for mine, theirs, tensor in zip(*gradients, (q, k, v), strict=True):
            both = [torch.zeros_like(tensor) if gradient is None else gradient for gradient in (mine, theirs)]
            torch.testing.assert_close(*both, atol=1e-6, rtol=0)
