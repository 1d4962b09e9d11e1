"""Ray finds simulated cards by itself, and every actor of verl's `Worker` sits on a card of its own.

One Ray session serves several rows, because starting Ray and four workers is nearly all of the time. The rows that show
the failure run the same program with XPU_SHIM=0.
"""

from __future__ import annotations

import json
import os

import pytest
from running import HERE, release, run

MASKED = {"XPU_SHIM_VISIBILITY": "mask"}


def session(rows: list[dict], init: dict | None = None, **environ: str) -> dict:
    """Run `ray_rows.py`; see there."""
    text = run(str(HERE / "ray_rows.py"), json.dumps({"rows": rows, "init": init or {}}), timeout=900, **environ)
    return json.loads(text.strip().splitlines()[-1])


def row(name: str, actors: int = 4, gpus: int = 1, **env: str) -> dict:
    return {"name": name, "actors": actors, "gpus": gpus, "env": env}


def distinct(seats) -> int:
    assert isinstance(seats, list), seats
    return len({seat["uuid"] for seat in seats})


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """No mask, with the shim. Returns (answers, tripwire file of the driver)."""
    tripwire = tmp_path_factory.mktemp("ray") / "first_use"
    rows = [
        row("pinned", SIMXPU_TRIPWIRE=str(tripwire)),
        row("ignored", 2, SIMXPU_FAULTS="mask_ignored", **MASKED),
        row("frozen", 2, PROBE_EARLY="1", **MASKED),
        row("cpu only", 1, gpus=0),
    ]
    answers = session(rows, CCL_LOG_LEVEL="warn")
    answers["uses"] = [json.loads(line) for line in tripwire.read_text().splitlines()]
    return answers


def test_ray_counts_the_cards_without_dpctl_and_without_touching_them(plain):
    assert plain["nodes"]["GPU"] == 4
    assert not plain["driver_initialised"]


def test_four_actors_sit_on_four_cards_and_see_all_of_them(plain):
    seats = plain["rows"]["pinned"]
    assert distinct(seats) == 4
    for seat in seats:
        assert seat["count"] == 4
        assert seat["mask"] is None
        assert seat["cuda"] is None
        assert seat["ids"] == [str(seat["index"])]
        assert seat["carried"] == "warn"
    assert sorted(seat["local_rank"] for seat in seats) == ["0", "1", "2", "3"]
    assert {seat["local_world_size"] for seat in seats} == {"4"}


def test_no_worker_uses_the_device_before_it_is_pinned(plain):
    assert len(plain["uses"]) == 4
    for use in plain["uses"]:
        assert any("devices/pinning.py" in frame for frame in use["stack"]), use["stack"]


@pytest.mark.parametrize("fault", ["ignored", "frozen"])
def test_a_mask_that_has_no_effect_does_not_matter(plain, fault):
    seats = plain["rows"][fault]
    assert distinct(seats) == 2
    for seat in seats:
        assert seat["count"] == 4, "the fault was not there"
        assert seat["mask"] == seat["ids"][0] == str(seat["index"])


def test_an_actor_without_a_gpu_knows_the_platform_and_does_not_touch_the_device(plain):
    assert plain["rows"]["cpu only"] == [
        {"device": "xpu", "backend": "xccl", "resource": "GPU", "ipc": False, "initialised": False}
    ]


@pytest.fixture(scope="module")
def masked():
    """The user allows cards 2 and 3."""
    rows = [
        row("pinned", 2),
        row("honoured", 2, **MASKED),
        row("noset", 2, RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK="1", RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR="1"),
    ]
    return session(rows, ZE_AFFINITY_MASK="2,3")


@pytest.mark.slow
def test_the_user_s_mask_limits_ray_and_its_ids_are_the_user_s(masked, plain):
    assert masked["nodes"]["GPU"] == 2
    allowed = {seat["uuid"] for seat in plain["rows"]["pinned"] if seat["ids"][0] in ("2", "3")}
    for name in ("pinned", "honoured", "noset"):
        seats = masked["rows"][name]
        assert distinct(seats) == 2
        assert {seat["uuid"] for seat in seats} == allowed
        assert sorted(seat["ids"][0] for seat in seats) == ["2", "3"]


@pytest.mark.slow
def test_pinned_workers_see_both_allowed_cards(masked):
    for name in ("pinned", "noset"):
        assert [(seat["count"], seat["mask"]) for seat in masked["rows"][name]] == [(2, "2,3")] * 2


@pytest.mark.slow
def test_masked_workers_see_one_card(masked):
    seats = masked["rows"]["honoured"]
    assert [(seat["count"], seat["index"], seat["mask"]) for seat in seats] == [
        (1, 0, seat["ids"][0]) for seat in seats
    ]


@pytest.fixture(scope="module")
def off():
    """Stock Ray and verl, told the number of cards. Actors of a plugin that knows the device but nothing else."""
    plugin = {"VERL_USE_EXTERNAL_MODULES": "hardware_plugin", "VERL_PLATFORM": "intel"}
    return session([row("stock", 4)], init={"num_gpus": 4}, XPU_SHIM="0", **plugin)


def test_without_the_shim_all_actors_sit_on_card_0(off):
    seats = off["rows"]["stock"]
    assert distinct(seats) == 1
    assert [seat["index"] for seat in seats] == [0] * 4
    assert sorted(seat["cuda"] for seat in seats) == ["0", "1", "2", "3"]  # what Ray set instead of a mask


def with_dpctl() -> str:
    return f"{HERE}{os.pathsep}{HERE / 'with_dpctl'}"


@pytest.mark.slow
def test_without_the_shim_dpctl_makes_ray_s_mask_come_too_late():
    plugin = {"VERL_USE_EXTERNAL_MODULES": "hardware_plugin", "VERL_PLATFORM": "intel"}
    answers = session([row("stock", 4)], XPU_SHIM="0", PYTHONPATH=with_dpctl(), **plugin)
    seats = answers["rows"]["stock"]
    assert answers["nodes"]["GPU"] == 4
    assert distinct(seats) == 1
    assert all(seat["mask"] == seat["ids"][0] and seat["count"] == 4 for seat in seats)


@pytest.mark.slow
def test_dpctl_beside_the_shim_is_not_asked():
    answers = session([row("pinned"), row("masked", **MASKED)], PYTHONPATH=with_dpctl())
    assert answers["nodes"]["GPU"] == 4
    assert not answers["driver_initialised"]
    assert distinct(answers["rows"]["pinned"]) == 4
    assert distinct(answers["rows"]["masked"]) == 4
    assert {seat["count"] for seat in answers["rows"]["masked"]} == {1}


@pytest.mark.slow
def test_ray_2_57_gives_the_same_ids_and_no_selector():
    path = f"{release('ray', '2.57.1')}{os.pathsep}{HERE}"
    rows = [row("pinned", 2), row("masked", 2, **MASKED), row("ignored", 2, SIMXPU_FAULTS="mask_ignored", **MASKED)]
    answers = session(rows, PYTHONPATH=path, ZE_AFFINITY_MASK="2,3")
    assert answers["ray"] == "2.57.1"
    assert answers["nodes"]["GPU"] == 2
    for seats in answers["rows"].values():
        assert distinct(seats) == 2
        assert sorted(seat["ids"][0] for seat in seats) == ["2", "3"]
        assert all(seat["selector"] is None for seat in seats)


@pytest.mark.slow
def test_without_the_shim_ray_2_57_writes_a_selector_into_every_worker():
    plugin = {"VERL_USE_EXTERNAL_MODULES": "hardware_plugin", "VERL_PLATFORM": "intel"}
    path = f"{release('ray', '2.57.1')}{os.pathsep}{with_dpctl()}"
    answers = session([row("stock", 2)], XPU_SHIM="0", PYTHONPATH=path, **plugin)
    seats = answers["rows"]["stock"]
    assert distinct(seats) == 1
    assert sorted(seat["selector"] for seat in seats) == ["level_zero:0", "level_zero:1"]
