"""Profiling of a rollout: verl's own vLLM server class, fully constructed, with a recorder in place of the engine."""

from __future__ import annotations

import profiling_programs as launch
import pytest

pytestmark = pytest.mark.slow

TOLD = ["xpu_shim_profile(True,)", "xpu_shim_profile(False,)"]


@pytest.fixture(scope="module")
def server(tmp_path_factory, collector):
    folder = tmp_path_factory.mktemp("server")
    return launch.run("server.py", folder, **collector), folder


@pytest.fixture(scope="module")
def stock(tmp_path_factory, collector):
    folder = tmp_path_factory.mktemp("stock")
    return launch.run("server.py", folder, XPU_SHIM_DISABLE=launch.OFF, **collector), folder


def test_witness_stock_drops_the_tool(stock):
    report, folder = stock
    assert report["vtune"] == {"before": "_NoOpProfiler", "profiler": "_NoOpProfiler", "asked": []}
    assert report["foreign calls"] == []
    assert "agent loop only support torch and npu profiler, got vtune" in (folder / "output.txt").read_text()


def test_vtune_collects_in_the_engine_processes(server):
    report, folder = server
    assert report["vtune"] == {"before": "_NoOpProfiler", "profiler": "VTuneProfiler", "asked": TOLD}
    assert launch.read_log(folder / "itt.vtune").events == ["pause", "resume", "rollout_generate", "pause"]


@pytest.mark.parametrize("row", ["vtune of another replica", "vtune, not enabled"])
def test_what_is_not_chosen_is_not_told(server, row):
    assert server[0][row]["asked"] == []
    assert "resume" not in launch.read_log(server[1] / f"itt.{row}").events


def test_a_tool_from_elsewhere_is_driven_in_the_server(server):
    assert server[0]["custom"] == {"before": "_NoOpProfiler", "profiler": "Recorder", "asked": []}
    assert server[0]["foreign calls"] == ["made for rank 0, depth 3", "start", "stop"]


def test_an_engine_that_cannot_be_told_costs_a_warning_not_the_run(server):
    report = server[0]
    assert report["vtune, broken engine"]["profiler"] == "VTuneProfiler"
    assert (
        sum("engine processes could not be told to start: NotImplementedError" in line for line in report["warnings"])
        == 1
    )


def test_torch_still_goes_to_vllm(server, stock):
    expected = {"before": "Profiler", "profiler": "Profiler", "asked": ["start_profile", "stop_profile"]}
    assert server[0]["torch"] == stock[0]["torch"] == expected
