"""SIMXPU_DEVICES, SIMXPU_FAULTS and the visibility rules: pure functions."""

import pytest
from simxpu import faults, settings
from simxpu.description import GIB, parse
from simxpu.visibility import visible


def seen(description: str, **env: str) -> list[str]:
    return [d.ordinal_text for d in visible(parse(description), env)]


def test_a_number_means_that_many_b60():
    cards = parse("4")
    assert [c.model.key for c in cards] == ["B60"] * 4
    assert len({c.pci_address for c in cards}) == 4
    assert len({c.uuid() for c in cards}) == 4
    assert [c.numa_node for c in cards] == [0, 0, 1, 1]
    assert all(c.memory == 24 * GIB for c in cards)


def test_models_tiles_sizes_and_integrated():
    cards = parse("iGPU+B60x2@512MiB+Max1550")
    assert [c.model.key for c in cards] == ["iGPU", "B60", "B60", "Max1550"]
    assert cards[0].pci_address == "0000:00:02.0"
    assert {c.numa_node for c in cards} == {-1}
    assert [c.memory for c in cards] == [16 * GIB, 512 << 20, 512 << 20, 128 * GIB]
    assert parse("2@1GiB")[1].memory == GIB
    assert parse("b60X2") == parse("B60x2")


@pytest.mark.parametrize(
    "text", ["", "0", "B60x0", "B99", "B60x4+", "B60@5", "B60@1KiB", "17", "iGPUx2", "4x2", "B60x-1"]
)
def test_a_bad_description_is_one_clear_error(text):
    with pytest.raises(ValueError, match="SIMXPU_DEVICES=") as e:
        parse(text)
    assert "B60x4" in str(e.value)
    assert "\n" not in str(e.value)


def test_the_uuid_is_laid_out_as_the_driver_does_it():
    card = parse("Max1550")[0]
    assert card.uuid().hex() == "8680d50b000000000300000000000000"
    assert card.uuid(1).hex() == "8680d50b000000000300000000000002"


B60 = ["0000:03:00.0", "0000:07:00.0", "0000:83:00.0", "0000:87:00.0"]
TILES = ["0000:03:00.0.0", "0000:03:00.0.1", "0000:83:00.0.0", "0000:83:00.0.1"]
COMPOSITE = {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}


@pytest.mark.parametrize(
    ("description", "env", "expected"),
    [
        ("B60x4", {}, B60),
        ("B60x4", {"ZE_AFFINITY_MASK": ""}, B60),
        ("B60x4", {"ZE_AFFINITY_MASK": "1,3"}, [B60[1], B60[3]]),
        ("B60x4", {"ZE_AFFINITY_MASK": "3,1"}, [B60[1], B60[3]]),  # a set, not an order
        ("B60x4", {"ZE_AFFINITY_MASK": "2,2,9"}, [B60[2]]),
        ("B60x4", {"ZE_AFFINITY_MASK": "9"}, []),
        ("B60x4", {"ZE_AFFINITY_MASK": "0.0"}, []),  # tiles are devices: N.T is ignored
        ("B60x4", {"ZE_AFFINITY_MASK": "1"} | COMPOSITE, [B60[1]]),
        ("Max1550x2", {}, TILES),
        ("Max1550x2", {"ZE_FLAT_DEVICE_HIERARCHY": "COMBINED"}, TILES),
        ("Max1550x2", {"ZE_AFFINITY_MASK": "1,2"}, TILES[1:3]),
        ("Max1550x2", COMPOSITE, ["0000:03:00.0", "0000:83:00.0"]),
        ("Max1550x2", {"ZE_AFFINITY_MASK": "0.1,1.0"} | COMPOSITE, [TILES[1], TILES[2]]),
        ("Max1550x2", {"ZE_AFFINITY_MASK": "1"} | COMPOSITE, ["0000:83:00.0"]),
        ("Max1550x2", {"ZE_AFFINITY_MASK": "0.0,0.1"} | COMPOSITE, ["0000:03:00.0"]),
        ("Max1550x2", {"ZE_AFFINITY_MASK": "0.7"} | COMPOSITE, []),
        # discrete cards are numbered first, and torch shows an integrated GPU only if there is no other
        ("iGPU+B60x2", {}, ["0000:03:00.0", "0000:07:00.0"]),
        ("iGPU+B60x2", {"ZE_AFFINITY_MASK": "1"}, ["0000:07:00.0"]),
        ("iGPU+B60x2", {"ZE_AFFINITY_MASK": "2"}, ["0000:00:02.0"]),
        ("iGPU+B60x2", {"ZE_AFFINITY_MASK": "0", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}, ["0000:00:02.0"]),
        ("iGPU", {}, ["0000:00:02.0"]),
        # the selector counts what the mask left
        ("B60x4", {"ONEAPI_DEVICE_SELECTOR": "level_zero:0,2"}, [B60[0], B60[2]]),
        ("B60x4", {"ONEAPI_DEVICE_SELECTOR": "level_zero:1", "ZE_AFFINITY_MASK": "1"}, []),
        ("B60x4", {"ONEAPI_DEVICE_SELECTOR": "level_zero:1", "ZE_AFFINITY_MASK": "1,3"}, [B60[3]]),
        ("B60x4", {"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu"}, B60),
        ("B60x4", {"ONEAPI_DEVICE_SELECTOR": "*:*"}, B60),
        ("B60x4", {"ONEAPI_DEVICE_SELECTOR": "opencl:*"}, []),
        ("B60x4", {"ONEAPI_DEVICE_SELECTOR": "!level_zero:0"}, B60[1:]),
        ("B60x4", {"ONEAPI_DEVICE_SELECTOR": "level_zero:*;!level_zero:0,3"}, B60[1:3]),
        ("Max1550x2", {"ONEAPI_DEVICE_SELECTOR": "level_zero:0.1"} | COMPOSITE, [TILES[1]]),
        ("Max1550x2", {"ONEAPI_DEVICE_SELECTOR": "level_zero:*.*"} | COMPOSITE, TILES),
    ],
)
def test_visible_devices(description, env, expected):
    assert seen(description, **env) == expected


@pytest.mark.parametrize("selector", ["0,1", "level_zero:gpu:0", "lvl0:*", "level_zero:", "level_zero:x"])
def test_a_selector_the_runtime_refuses(selector):
    with pytest.raises(RuntimeError, match="ONEAPI_DEVICE_SELECTOR parsing error"):
        seen("B60x4", ONEAPI_DEVICE_SELECTOR=selector)


def test_a_mask_the_driver_cannot_read():
    with pytest.raises(RuntimeError, match="ZE_AFFINITY_MASK='gpu0'"):
        seen("B60x4", ZE_AFFINITY_MASK="gpu0")


def test_fault_defaults_and_switching_off():
    assert faults.parse("").on == {"mask_frozen", "no_splitting", "nan_fill"}
    f = faults.parse("avg_abort, -nan_fill,hang:all_reduce:3@1,device_lost:20")
    assert "avg_abort" in f
    assert "nan_fill" not in f
    assert f.hangs == (faults.Hang("all_reduce", 3, 1),)
    assert (f.device_lost, f.device_lost_rank) == (20, None)


@pytest.mark.parametrize(
    "text",
    [
        "avg-abort",
        "hang",
        "hang:all_reduce",
        "hang:allreduce:1",
        "hang:all_reduce:0",
        "device_lost:x",
        "avg_abort:1",
        "avg_abort@1",
        "avg_abort,avg_double_divide",
        "free_memory_zero,free_memory_total",
    ],
)
def test_a_bad_fault_is_one_clear_error(text):
    with pytest.raises(ValueError, match="SIMXPU_FAULTS=") as e:
        faults.parse(text)
    assert "avg_abort" in str(e.value)


def test_settings_are_checked():
    assert not settings.enabled({})
    assert settings.enabled({"SIMXPU": "1"})
    for bad, call in (
        ({"SIMXPU": "yes"}, settings.enabled),
        ({"SIMXPU_HANG_LIMIT": "soon"}, settings.hang_limit),
        ({"SIMXPU_MACHINE": "a/b"}, settings.machine),
    ):
        with pytest.raises(ValueError, match=next(iter(bad))):
            call(bad)
