"""Handing an XPU tensor to another process: what torch does alone, and the clear error instead.

The device is a stand-in that only answers `.device`; the simulated device's tests use real tensors on it.
"""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler

import pytest
import torch


class OnXpu(torch.Tensor):
    """A host tensor that calls itself an XPU tensor."""

    @property
    def device(self) -> torch.device:
        return torch.device("xpu", 0)


@pytest.fixture
def patched():
    from xpu_shim.core.apply import apply_patch, remove_patch

    original = torch.multiprocessing.reductions.reduce_tensor
    apply_patch("torch.reduce_tensor")
    yield torch.multiprocessing.reductions
    remove_patch("torch.reduce_tensor")
    assert torch.multiprocessing.reductions.reduce_tensor is original


def test_torch_alone_answers_with_three_arguments():
    rebuild, arguments = torch.multiprocessing.reductions.reduce_tensor(torch.ones(3).as_subclass(OnXpu))
    assert rebuild.__name__ == "rebuild_tensor"
    with pytest.raises(IndexError):
        list(arguments)[6] = 0  # what verl's rebuild_ipc does


def test_the_error_names_the_way_out(patched):
    with pytest.raises(RuntimeError, match=r"shape \(3,\).*on xpu:0 cannot be handed.*use_shm=True"):
        patched.reduce_tensor(torch.ones(3).as_subclass(OnXpu))


def test_host_tensors_are_as_before(patched):
    rebuild, arguments = patched.reduce_tensor(torch.arange(4))
    assert torch.equal(rebuild(*arguments), torch.arange(4))


def test_a_queue_uses_it_and_then_torchs_own_again():
    from xpu_shim.core.apply import apply_patch, remove_patch

    table = ForkingPickler._extra_reducers
    original = torch.multiprocessing.reductions.reduce_tensor
    assert table[torch.Tensor] is table[torch.nn.Parameter] is original
    apply_patch("torch.reduce_tensor")
    try:
        assert table[torch.Tensor] is table[torch.nn.Parameter] is torch.multiprocessing.reductions.reduce_tensor
        assert table[torch.Tensor] is not original
    finally:
        remove_patch("torch.reduce_tensor")
    assert table[torch.Tensor] is table[torch.nn.Parameter] is original


def test_pickling_host_tensors_still_works(patched):
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(torch.ones(2))
    assert buffer.getvalue()
