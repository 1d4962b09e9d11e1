"""What vLLM took while others moved: arithmetic on snapshots of all shapes vLLM has had."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from xpu_shim.rollout import profiling, snapshots

MIB = 1 << 20
TOTAL = 24000 * MIB


def snapshot(used: int, torch: int, held: int | None = None):
    """`used` MiB of the card by all, `torch` MiB by this process's allocator, `held` as the kernel counts it."""
    shot = SimpleNamespace(device_=SimpleNamespace(type="xpu"), torch_memory=torch * MIB)
    snapshots.put(shot, TOTAL - used * MIB, TOTAL)
    setattr(shot, snapshots.HELD, None if held is None else held * MIB)
    return shot


def result(first, second, last, weights: int = 2000, new: bool = True):
    fields = {
        "before_create": first,
        "before_profile": second,
        "after_profile": last,
        "weights_memory": weights * MIB,
        "torch_peak_increase": 1000 * MIB,
        "non_torch_increase": last.non_torch_memory - first.non_torch_memory,
    }
    if new:
        fields |= {
            "total_consumed": first.free_memory - last.free_memory,
            "transient_peak_headroom": 1000 * MIB,
        }
        fields["non_kv_cache_memory"] = fields["total_consumed"] + 1000 * MIB
    else:
        fields["non_kv_cache_memory"] = fields["non_torch_increase"] + 3000 * MIB
    return SimpleNamespace(**fields)


#: A trainer of 9000 MiB beside vLLM, which takes 2000 of weights, 300 outside the allocator, and keeps 100 after
#: profiling; then the trainer's size at each of the three snapshots.
QUIET = (9000, 9000, 9000)
SCENES = {
    "nobody moves": QUIET,
    "offloads during profiling": (9000, 9000, 1000),
    "offloads while weights load": (9000, 1000, 1000),
    "offloads a little": (9000, 9000, 8000),
    "offloads twice": (9000, 5000, 1000),
}


def scene(trainer: tuple[int, int, int], kernel: bool, new: bool):
    own = (0, 2200, 2400)
    torch = (0, 2000, 2100)
    shots = [
        snapshot(theirs + mine, allocated, mine if kernel else None)
        for theirs, mine, allocated in zip(trainer, own, torch, strict=True)
    ]
    return result(*shots, new=new)


@pytest.mark.parametrize("new", [True, False], ids=["0.27 and newer", "0.26 and older"])
@pytest.mark.parametrize("name", SCENES)
def test_with_the_kernels_account_it_is_exact(name: str, new: bool) -> None:
    true, moved = scene(QUIET, True, new), scene(SCENES[name], True, new)
    profiling.correct(moved)
    assert moved.non_kv_cache_memory == true.non_kv_cache_memory
    assert moved.before_create.free_memory >= moved.after_profile.free_memory


@pytest.mark.parametrize("new", [True, False], ids=["0.27 and newer", "0.26 and older"])
@pytest.mark.parametrize("name", SCENES)
def test_without_it_only_what_a_release_hides_in_a_step_is_missing(name: str, new: bool) -> None:
    true, moved = scene(QUIET, False, new), scene(SCENES[name], False, new)
    stock = moved.non_kv_cache_memory
    profiling.correct(moved)
    hidden = 300 * MIB  # what vLLM took outside the allocator
    assert true.non_kv_cache_memory - hidden <= moved.non_kv_cache_memory <= true.non_kv_cache_memory
    assert moved.before_create.free_memory >= moved.after_profile.free_memory
    if name != "nobody moves":
        assert stock < true.non_kv_cache_memory - hidden  # the KV cache would have been too large


def test_an_allocation_by_others_is_found_with_the_kernels_account() -> None:
    true, moved = scene(QUIET, True, True), scene((9000, 9000, 12000), True, True)
    profiling.correct(moved)
    assert moved.total_consumed == true.total_consumed


def test_a_kernel_account_that_misses_the_allocator_is_not_used() -> None:
    shots = [snapshot(9000, 0, 0), snapshot(11000, 2000, 0), snapshot(11000, 2000, 0)]
    assert profiling.own_consumption(result(*shots)) == 2000 * MIB


def test_weights_in_a_pool_the_allocator_does_not_count() -> None:
    shots = [snapshot(9000, 0), snapshot(11000, 0), snapshot(2000, 0)]
    assert profiling.own_consumption(result(*shots)) == 2000 * MIB


def test_noise_is_left_alone() -> None:
    moved = result(snapshot(9000, 0), snapshot(11000, 2000), snapshot(10990, 2000))
    before = dict(vars(moved))
    profiling.correct(moved)
    assert vars(moved) == before


def test_other_devices_are_left_alone() -> None:
    moved = scene(SCENES["offloads during profiling"], False, True)
    moved.before_create.device_.type = "cuda"
    before = dict(vars(moved))
    profiling.correct(moved)
    assert vars(moved) == before
