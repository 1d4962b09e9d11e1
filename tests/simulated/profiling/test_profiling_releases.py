"""The tools vtune, torch and torch_memory on every supported verl release, on the simulated device."""

from __future__ import annotations

import profiling_programs as launch
import pytest

#: The stages of `FakeWorker` in a profiled step.
STAGES = ["actor_compute_log_prob", ".inner stage", "actor_update"]

RELEASES = [
    "0.9.1",
    *(pytest.param(version, marks=pytest.mark.slow) for version in ("0.9.0", "0.8.0", "0.7.1")),
]


@pytest.fixture(scope="module", params=RELEASES)
def result(request, tmp_path_factory, collector, release):
    """(version, report, folder); the installed release is 0.9.1."""
    folder = tmp_path_factory.mktemp("release")
    path = () if request.param == "0.9.1" else (release(request.param),)
    report = launch.run("release.py", folder, path=path, **collector)
    assert report["version"] == request.param
    return request.param, report, folder


def log(result, name):
    return launch.read_log(result[2] / f"itt.{name}").events


def test_vtune_collects_the_step_with_its_stages(result):
    assert result[1]["vtune"] == "VTuneProfiler"
    assert log(result, "vtune") == ["pause", "resume", *STAGES, "pause"]


def test_vtune_discrete_collects_each_outermost_stage(result):
    assert log(result, "discrete") == ["pause", "resume", *STAGES[:2], "pause", "resume", STAGES[2], "pause"]


def test_vtune_collects_on_the_chosen_ranks_only(result):
    assert log(result, "chosen") == ["pause", "resume", *STAGES, "pause"]
    assert log(result, "other") == ["pause"]


def test_vtune_not_enabled_does_nothing(result):
    assert result[1]["not enabled"] == "VTuneProfiler"
    assert log(result, "off") == []


def test_bad_configurations_are_one_clear_error(result):
    report = result[1]
    key = "ToolConfigError: profiler.tool_config.vtune"
    assert report["bad value"].startswith(f"{key}.discrete='yes' is not allowed; use true ")
    assert report["bad key"] == f"{key} has the key 'discret'; known are discrete, name and _target_"
    assert report["bad target"].startswith(f"{key} with _target_='no.such.Class' cannot be made: ")


def test_an_unknown_tool_warns_once(result):
    assert result[1]["unknown"] == ["_NoOpProfiler"] * 2
    assert len(result[1]["warnings"]) == 1
    assert result[1]["warnings"][0].startswith(
        "profiler.tool='vtun' is not known, nothing is profiled. Known are nsys, "
    )


def test_torch_records_xpu_activity_where_it_recorded_cuda(result):
    version, report, _ = result
    both = [["CPU", "XPU"], "xpu"]
    device = both if version >= "0.9.1" else [["XPU"], "xpu"]  # older releases take `contents` at its word
    assert report["contents"] == {
        "": both,
        "cpu": [["CPU"], None],
        "cuda": device,
        "xpu": device,
        "xpu,cpu,stack": both,
        "cuda,xpu": device,
    }


def test_torch_writes_a_trace_of_the_step(result):
    stage = "actor_compute_log_prob" if result[0] >= "0.9.1" else "compute_log_prob"
    assert result[1]["trace"] == sorted(["aten::mm", stage])


def test_torch_memory_records_through_torch_xpu(result):
    version, report, _ = result
    asked = [1000] if version == "0.7.1" else [1000, "off", 1000]  # newer ones clear the history after a snapshot
    assert report["snapshot"] == {"asked": asked, "snapshots": [["device_traces", "segments"]]}


@pytest.fixture(scope="module")
def stock(tmp_path_factory, collector):
    folder = tmp_path_factory.mktemp("stock")
    return launch.run("release.py", folder, XPU_SHIM_DISABLE=launch.OFF, **collector), folder


def test_witness_stock_takes_vtune_and_profiles_nothing(stock):
    report, folder = stock
    assert report["vtune"] == "_NoOpProfiler"
    assert launch.read_log(folder / "itt.vtune").events == []
    assert report["warnings"] == []


def test_witness_stock_records_cuda_and_refuses_xpu(stock):
    contents = stock[0]["contents"]
    assert contents[""] == [["CPU", "CUDA"], "cuda"]
    assert contents["xpu"] == (
        "AssertionError: Profiler contents only supports ['cuda', 'cpu', 'memory', 'shapes', 'stack'], but gets xpu"
    )
    assert "CUDA is not available, disabling CUDA profiling" in (stock[1] / "output.txt").read_text()


@pytest.mark.slow
def test_witness_verl_0_7_1_records_no_memory_history(tmp_path, release):
    report = launch.run(
        "release.py",
        tmp_path / "run",
        path=(release("0.7.1"),),
        XPU_SHIM_DISABLE=f"{launch.OFF},verl.profiler_memory",
    )
    assert report["snapshot"]["asked"] == []
