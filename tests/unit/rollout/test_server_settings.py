"""A vLLM server's environment, executor and sleep mode, decided from plain objects."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from xpu_shim.devices import machine
from xpu_shim.intel.visibility import VisibilityError
from xpu_shim.rollout import environment, errors, executor, sleep


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """Make a machine: cards(number of B60)."""
    for name in ("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "ONEAPI_DEVICE_SELECTOR", "XPU_SHIM_PROCESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(environment.START_METHOD, raising=False)
    monkeypatch.setattr(machine, "_earlier", [])
    monkeypatch.setenv("XPU_SHIM_SYSFS", str(tmp_path))

    def make(number: int) -> None:
        for index in range(number):
            device = tmp_path / "class" / "drm" / f"renderD{128 + index}" / "device"
            device.mkdir(parents=True)
            for name, value in (("vendor", "0x8086"), ("device", "0xe211"), ("class", "0x030000")):
                (device / name).write_text(value)
            (device / "uevent").write_text(f"PCI_SLOT_NAME=0000:{index + 3:02x}:00.0\n")

    return make


@pytest.mark.parametrize(
    ("assigned", "ordinals", "allowed", "mask"),
    [
        ("0", True, None, "0"),
        ("2,3", True, "2,3", "2,3"),
        ("2", True, "2,3", "2"),
        ("0", False, "2,3", "2"),  # ids within what the user allowed
        ("0,1", False, "1,3", "1,3"),
        ("1,0", False, None, "0,1"),
    ],
)
def test_replica_mask(cards, monkeypatch, assigned, ordinals, allowed, mask) -> None:
    cards(4)
    if allowed:
        monkeypatch.setenv("ZE_AFFINITY_MASK", allowed)
    result = environment.replica_mask(assigned, ordinals)
    assert sorted(result.split(",")) == sorted(mask.split(","))


@pytest.mark.parametrize(("assigned", "ordinals"), [("7", True), ("4", False)])
def test_a_device_that_is_not_there(cards, assigned, ordinals) -> None:
    cards(4)
    with pytest.raises(VisibilityError, match=rf"Ray assigned GPU '{assigned}' .* sysfs shows 4 device"):
        environment.replica_mask(assigned, ordinals)


def test_an_unknown_machine_keeps_what_ray_said(cards) -> None:
    assert environment.replica_mask("5", True) == "5"


def test_a_malformed_id(cards) -> None:
    cards(2)
    with pytest.raises(VisibilityError, match="GPU-abc"):
        environment.replica_mask("GPU-abc", True)


@pytest.mark.parametrize("selector", ["level_zero:0", "level_zero:gpu:0", "0,1"])
def test_prepare(cards, monkeypatch, selector) -> None:
    cards(2)
    monkeypatch.setattr(environment, "ids_are_ordinals", lambda: True)
    environ = {"ONEAPI_DEVICE_SELECTOR": selector}
    monkeypatch.setattr(environment.os, "environ", environ)
    assert environment.prepare("1") == "1"
    assert environ == {"XPU_SHIM_PROCESS": "rollout", environment.START_METHOD: "spawn"}


def test_the_users_start_method_stays(cards, monkeypatch) -> None:
    monkeypatch.setattr(environment, "ids_are_ordinals", lambda: True)
    monkeypatch.setenv(environment.START_METHOD, "fork")
    environment.prepare("0")
    assert environment.os.environ[environment.START_METHOD] == "fork"


def server(engine=None, **config):
    fields = {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "data_parallel_size": 1,
        "enable_sleep_mode": True,
        "free_cache_engine": True,
        "engine_kwargs": {} if engine is None else {"vllm": engine},
        **config,
    }
    return SimpleNamespace(config=SimpleNamespace(**fields), nnodes=1, replica_rank=0, node_rank=0)


@pytest.mark.parametrize(
    ("engine", "config", "nnodes", "backend"),
    [
        (None, {}, 1, "uni"),
        ({}, {}, 1, "uni"),
        ({"distributed_executor_backend": None}, {}, 1, "uni"),
        ({"distributed_executor_backend": "mp"}, {}, 1, "mp"),
        ({"distributed_executor_backend": "ray"}, {}, 1, "ray"),
        ({}, {"tensor_model_parallel_size": 2}, 1, None),
        ({}, {"pipeline_model_parallel_size": 2}, 1, None),
        ({}, {"data_parallel_size": 2}, 1, None),
        ({"tensor_parallel_size": 2}, {}, 1, None),
        ({"pipeline_parallel_size": 2}, {}, 1, None),
        ({"tensor_parallel_size": 1}, {"tensor_model_parallel_size": 2}, 1, "uni"),
        ({}, {}, 2, None),
    ],
)
def test_executor(engine, config, nnodes, backend) -> None:
    subject = server(engine, **config)
    subject.nnodes = nnodes
    executor.choose(subject)
    assert subject.config.engine_kwargs["vllm"].get("distributed_executor_backend") == backend


@pytest.fixture
def vllm(monkeypatch):
    """Pretend a vLLM: vllm(version, xpu, its platform's answer, allocator)."""

    def make(version: str, xpu: bool, available: bool, allocator: bool | None = None) -> None:
        root, platforms = ModuleType("vllm"), ModuleType("vllm.platforms")
        root.__version__ = version
        platforms.current_platform = SimpleNamespace(
            is_sleep_mode_available=lambda: available, is_xpu=lambda: xpu, device_name="xpu" if xpu else "cpu"
        )
        monkeypatch.setitem(sys.modules, "vllm", root)
        monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
        xpumem = None
        if allocator is not None:
            xpumem = ModuleType("vllm.device_allocator.xpumem")
            xpumem.xpumem_available = allocator
        monkeypatch.setitem(sys.modules, "vllm.device_allocator", ModuleType("vllm.device_allocator"))
        monkeypatch.setitem(sys.modules, "vllm.device_allocator.xpumem", xpumem)
        torch = ModuleType("torch")
        torch.__version__ = "2.13.0"
        torch.xpu = SimpleNamespace(memory=SimpleNamespace(MemPool=object, use_mem_pool=object))
        monkeypatch.setitem(sys.modules, "torch", torch)

    return make


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    """The warnings that sleep mode's rules give."""
    texts: list[str] = []
    monkeypatch.setattr(sleep, "warn_once", texts.append)
    return texts


@pytest.mark.parametrize(
    ("version", "xpu", "available", "allocator", "words"),
    [
        ("0.17.1", True, False, None, "vLLM 0.17.1 has no sleep mode on platform xpu; Intel GPUs need vLLM 0.23"),
        ("0.22.1", True, False, None, "vLLM 0.22.1 has no sleep mode on platform xpu; Intel GPUs need vLLM 0.23"),
        ("0.23.0", True, True, True, None),
        ("0.33.0", True, True, True, None),
        ("0.24.0", True, True, False, "lacks xpumem_allocator"),
        ("0.24.0", True, True, None, "cannot be imported"),
        ("0.32.0", False, False, None, "vLLM 0.32.0 has no sleep mode on platform cpu"),
    ],
)
def test_sleep_mode(vllm, warnings, version, xpu, available, allocator, words) -> None:
    vllm(version, xpu, available, allocator)
    subject, args = server(), SimpleNamespace(enable_sleep_mode=True, gpu_memory_utilization=0.5)
    sleep.agree(subject, args)
    kept = words is None
    assert args.enable_sleep_mode is kept
    assert (subject.config.enable_sleep_mode, subject.config.free_cache_engine) == (kept, kept)
    assert sleep.never_sleeps(subject) is not kept
    assert len(warnings) == (0 if kept else 1)
    if words:
        assert words in warnings[0]
        assert "free_cache_engine=True is switched off with it" in warnings[0]


def test_only_the_first_replica_warns(vllm, warnings) -> None:
    vllm("0.17.1", True, False)
    subject, args = server(), SimpleNamespace(enable_sleep_mode=True)
    subject.replica_rank = 1
    sleep.agree(subject, args)
    assert not warnings
    assert args.enable_sleep_mode is False


def test_sleep_mode_switched_off_by_the_user(vllm) -> None:
    vllm("0.33.0", True, True, True)
    subject, args = server(), SimpleNamespace(enable_sleep_mode=False)
    sleep.agree(subject, args)
    assert subject.config.free_cache_engine is False


def test_portable_errors() -> None:
    class Unsendable(ValueError):
        def __reduce__(self):
            raise TypeError("cannot pickle")

    fine = KeyError("x")
    assert errors.portable(fine) is fine
    replaced = errors.portable(Unsendable("bad setting"))
    assert type(replaced) is ValueError
    assert str(replaced) == "Unsendable: bad setting"
