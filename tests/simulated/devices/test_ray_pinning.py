"""Ray finds simulated cards by itself, and every actor of verl's `Worker` sits on a card of its own.

One Ray session serves several rows, because starting Ray and four workers is nearly all of the time. The rows that show
the failure run the same program with XPU_SHIM=0; there verl learns of the device from a plugin that knows nothing else.
"""

from __future__ import annotations

import json
import os

import pytest
from running import HERE, release, run

#: A session of 20 workers takes minutes on two busy cores.
pytestmark = pytest.mark.timeout(600)

MASKED = {"XPU_SHIM_VISIBILITY": "mask"}
NOSET = {"RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK": "1", "RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR": "1"}
IGNORED = {"SIMXPU_FAULTS": "mask_ignored"}
FROZEN = {"PROBE_EARLY": "1"}

PLUGIN = {"VERL_USE_EXTERNAL_MODULES": "hardware_plugin"}
OFF = {"XPU_SHIM": "0", "VERL_PLATFORM": "intel", **PLUGIN}

INTEL = {
    "platform": ["intel", "xpu", "xccl", "GPU"],
    "functions": ["xpu", "xccl", "GPU"],
    "ipc": [False, False],
    "available": True,
}


def session(rows: list[dict], init: dict | None = None, **environ: str) -> dict:
    """Run `ray_rows.py`; see there."""
    text = run(str(HERE / "ray_rows.py"), json.dumps({"rows": rows, "init": init or {}}), timeout=560, **environ)
    return json.loads(text.strip().splitlines()[-1])


def row(name: str, actors: int = 4, kind: str = "worker", **env: str) -> dict:
    return {"name": name, "actors": actors, "kind": kind, "env": env}


def path(version: str = "", dpctl: bool = False) -> str:
    """PYTHONPATH for the installed or another release of Ray, with or without the stand-in for dpctl."""
    folders = [str(HERE), *([str(HERE / "with_dpctl")] if dpctl else [])]
    return os.pathsep.join([release("ray", version), *folders] if version else folders)


def distinct(seats) -> int:
    assert isinstance(seats, list), seats
    return len({seat["uuid"] for seat in seats})


def uses(file) -> list[dict]:
    """The first use of the device by each process, as the simulator's tripwire noted it."""
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Stock Ray and no mask, with the shim."""
    tripwire = tmp_path_factory.mktemp("ray") / "first_use"
    rows = [row("pinned"), row("cpu only", 1, "cpu"), row("own", 2, "own", SIMXPU_TRIPWIRE="")]
    answers = session(rows, CCL_LOG_LEVEL="warn", SIMXPU_TRIPWIRE=str(tripwire))
    answers["uses"] = uses(tripwire)
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


def test_no_process_of_ray_uses_the_device_before_it_is_pinned(plain):
    assert len(plain["uses"]) == 4, "a process besides the four workers used the device"
    for use in plain["uses"]:
        assert any("devices/pinning.py" in frame for frame in use["stack"]), use["stack"]


def test_the_platform_is_known_in_driver_worker_and_actor_without_a_gpu(plain):
    ours = {**INTEL, "module": "xpu_shim.devices.platform"}
    assert plain["driver"] == {**ours, "initialised": False}
    assert plain["rows"]["cpu only"] == [{**ours, "initialised": False}]
    for seat in plain["rows"]["pinned"]:
        assert seat["platform"] == {**ours, "initialised": True}


def test_an_actor_of_the_user_s_own_sees_the_card_that_ray_gave_it(plain):
    seats = plain["rows"]["own"]
    assert distinct(seats) == 2
    for seat in seats:
        assert (seat["count"], seat["index"], [seat["mask"]]) == (1, 0, seat["ids"])


@pytest.fixture(scope="module")
def off(tmp_path_factory):
    """The same without the shim, Ray told the number of cards."""
    tripwire = tmp_path_factory.mktemp("ray") / "first_use"
    rows = [row("stock", SIMXPU_TRIPWIRE=str(tripwire)), row("own", 2, "own")]
    answers = session(rows, init={"num_gpus": 4}, **OFF)
    answers["uses"] = uses(tripwire)
    return answers


def test_without_the_shim_all_actors_sit_on_card_0(off):
    for name, count in (("stock", 4), ("own", 2)):
        seats = off["rows"][name]
        assert distinct(seats) == 1
        assert [seat["index"] for seat in seats] == [0] * count
        assert len({seat["cuda"] for seat in seats}) == count  # what Ray set instead of a mask


def test_without_the_shim_the_device_is_used_before_any_pinning(off):
    assert off["driver"]["initialised"], "asking for the platform did not touch the device"
    assert len(off["uses"]) == 4
    assert not any("pinning" in frame for use in off["uses"] for frame in use["stack"])


#: Release of Ray (none: the installed one) and whether the stand-in for dpctl is there.
SETTINGS = {
    "without dpctl": ("", False),
    "with dpctl": ("", True),
    "Ray 2.57 without dpctl": ("2.57.1", False),
    "Ray 2.57 with dpctl": ("2.57.1", True),
}


@pytest.fixture(
    scope="module",
    params=[
        "without dpctl",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in SETTINGS if name != "without dpctl"),
    ],
)
def faults(request):
    """The faults of a mask, four cards, with the shim."""
    version, dpctl = SETTINGS[request.param]
    rows = [
        row("pinned"),
        row("honoured", **MASKED),
        row("ignored", **MASKED, **IGNORED),
        row("frozen", **MASKED, **FROZEN),
        row("noset", **NOSET),
    ]
    answers = session(rows, PYTHONPATH=path(version, dpctl))
    assert not version or answers["ray"] == version
    return answers


@pytest.mark.slow
def test_four_actors_sit_on_four_cards_whatever_becomes_of_the_mask(faults):
    assert faults["nodes"]["GPU"] == 4
    assert not faults["driver_initialised"]
    found = {name: distinct(seats) for name, seats in faults["rows"].items()}
    assert found == dict.fromkeys(["pinned", "honoured", "ignored", "frozen", "noset"], 4)
    for name, seats in faults["rows"].items():
        # The faults were there: one card where the mask is honoured, all where it is not or nobody wrote one.
        assert {seat["count"] for seat in seats} == {1 if name == "honoured" else 4}, name
        assert sorted(seat["ids"][0] for seat in seats) == ["0", "1", "2", "3"]
        for seat in seats:
            assert seat["selector"] is None
            assert seat["mask"] == (None if name in ("pinned", "noset") else seat["ids"][0])


@pytest.fixture(
    scope="module", params=["", pytest.param("2.57.1", marks=pytest.mark.exhaustive)], ids=["installed", "Ray 2.57"]
)
def masked(request):
    """The user allows cards 2 and 3."""
    rows = [row("pinned", 2), row("honoured", 2, **MASKED), row("noset", 2, **NOSET), row("own", 2, "own")]
    answers = session(rows, ZE_AFFINITY_MASK="2,3", PYTHONPATH=path(request.param))
    assert not request.param or answers["ray"] == request.param
    return answers


@pytest.mark.slow
def test_the_user_s_mask_limits_ray_and_its_ids_are_the_user_s(masked, plain):
    assert masked["nodes"]["GPU"] == 2
    allowed = {seat["uuid"] for seat in plain["rows"]["pinned"] if seat["ids"][0] in ("2", "3")}
    assert len(allowed) == 2
    for name, seats in masked["rows"].items():
        assert isinstance(seats, list), seats
        assert {seat["uuid"] for seat in seats} == allowed, name
        assert sorted(seat["ids"][0] for seat in seats) == ["2", "3"]
        for seat in seats:
            alone = name in ("honoured", "own")
            assert (seat["count"], seat["mask"]) == ((1, seat["ids"][0]) if alone else (2, "2,3"))


@pytest.mark.slow
def test_without_the_shim_the_user_s_mask_puts_two_actors_on_one_card_or_out_of_range():
    rows = [row("stock", 2), row("noset", 2, **NOSET)]
    answers = session(rows, ZE_AFFINITY_MASK="2,3", PYTHONPATH=path(dpctl=True), **OFF)
    assert distinct(answers["rows"]["stock"]) == 1
    error = answers["rows"]["noset"]["error"]  # verl takes Ray's number for a torch index
    assert "set_device" in error
    assert "out of range" in error or "invalid device" in error.lower()


@pytest.mark.slow
def test_without_the_shim_every_fault_of_the_mask_puts_four_actors_on_one_card():
    ignorant = {"RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK": "1"}  # the variable verl does not know
    rows = [row("dpctl is too early"), row("ignored", **IGNORED), row("frozen", **FROZEN), row("noset", **ignorant)]
    answers = session(rows, PYTHONPATH=path(dpctl=True), **OFF)
    assert answers["nodes"]["GPU"] == 4
    assert {name: distinct(seats) for name, seats in answers["rows"].items()} == dict.fromkeys(answers["rows"], 1)
    for name, seats in answers["rows"].items():
        assert all(seat["count"] == 4 for seat in seats)
        assert all(seat["mask"] == (None if name == "noset" else seat["ids"][0]) for seat in seats)


@pytest.mark.exhaustive
def test_without_the_shim_ray_2_57_writes_a_selector_into_every_worker():
    answers = session([row("stock")], PYTHONPATH=path("2.57.1", dpctl=True), **OFF)
    seats = answers["rows"]["stock"]
    assert distinct(seats) == 1
    assert sorted(seat["selector"] for seat in seats) == [f"level_zero:{number}" for number in range(4)]


@pytest.mark.slow
def test_a_plugin_s_platform_is_taken_in_workers_too_and_does_not_touch_the_device(tmp_path):
    tripwire = tmp_path / "first_use"
    rows = [row("plugin", SIMXPU_TRIPWIRE=str(tripwire)), row("cpu only", 1, "cpu")]
    answers = session(rows, **PLUGIN)
    theirs = {**INTEL, "module": "hardware_plugin"}
    assert answers["driver"] == {**theirs, "initialised": False}
    assert answers["rows"]["cpu only"] == [{**theirs, "initialised": False}]
    assert distinct(answers["rows"]["plugin"]) == 4
    for seat in answers["rows"]["plugin"]:
        assert seat["platform"] == {**theirs, "initialised": True}
    for use in uses(tripwire):
        assert any("devices/pinning.py" in frame for frame in use["stack"]), use["stack"]
