"""Every tool, every form of its configuration, nvtx importable or not: what stock verl makes of it, and what we do."""

from __future__ import annotations

import shutil
import socket

import profiling_programs as launch
import pytest

NO_NVTX = "ModuleNotFoundError: No module named 'nvtx'"
NO_NPU = "ModuleNotFoundError: No module named 'torch_npu'"
NO_CONFIG = "AssertionError: tool_config must be provided when profiler is enabled"
NOTHING = "_NoOpProfiler(dict)"

#: tool, form: (outer, inner) of stock verl 0.9.1; the same with the shim. `dict` is the configuration of *all* tools.
UNCHANGED = {
    "npu missing": (NO_NPU, NO_NPU),
    "npu empty": (NO_NPU, NO_NPU),
    "npu target": (NO_NPU, NO_NPU),
    "torch missing": (NO_CONFIG, NO_CONFIG),
    "torch empty": ("AttributeError: 'dict' object has no attribute 'contents'", NO_CONFIG),
    "torch target": ("Profiler(TorchProfilerToolConfig)",) * 2,
    "torch_memory missing": ("TorchMemoryProfiler(dict)",) * 2,
    "torch_memory empty": (
        "AttributeError: 'dict' object has no attribute 'trace_alloc_max_entries'",
        "TorchMemoryProfiler(dict)",
    ),
    "torch_memory target": ("TorchMemoryProfiler(TorchMemoryToolConfig)",) * 2,
    "precision_debugger missing": ("PrecisionDebuggerProfiler(dict)",) * 2,
    "precision_debugger empty": (
        "TypeError: PrecisionDebuggerToolConfig.__init__() got an unexpected keyword argument 'precision_debug",
        "PrecisionDebuggerProfiler(dict)",
    ),
    "precision_debugger target": ("PrecisionDebuggerProfiler(PrecisionDebuggerToolConfig)",) * 2,
}

#: nsys alone depends on nvtx: without it, and with it.
NSYS = {
    "without": {"nsys missing": (NO_NVTX,) * 2, "nsys empty": (NO_NVTX,) * 2, "nsys target": (NO_NVTX,) * 2},
    "with": {
        "nsys missing": (NO_CONFIG,) * 2,
        "nsys empty": ("AttributeError: 'dict' object has no attribute 'discrete'", NO_CONFIG),
        "nsys target": ("NsightSystemsProfiler(NsightToolConfig)",) * 2,
    },
}

#: The tools that stock verl does not know: tool, form: (stock's outer and inner), (ours).
CHANGED = {
    "vtune missing": ((NOTHING,) * 2, ("VTuneProfiler(VTuneToolConfig)",) * 2),
    "vtune empty": ((NOTHING,) * 2, ("VTuneProfiler(VTuneToolConfig)",) * 2),
    "vtune target": ((NOTHING, "_NoOpProfiler(VTuneToolConfig)"), ("VTuneProfiler(VTuneToolConfig)",) * 2),
    "custom missing": ((NOTHING,) * 2, (NOTHING,) * 2),
    "custom empty": ((NOTHING,) * 2, (NOTHING,) * 2),
    "custom target": ((NOTHING, "_NoOpProfiler(WithProfiler)"), ("Recorder(WithProfiler)",) * 2),
    "unknown missing": ((NOTHING,) * 2, (NOTHING,) * 2),
    "unknown empty": ((NOTHING,) * 2, (NOTHING,) * 2),
    "unknown target": ((NOTHING, "_NoOpProfiler(WithoutProfiler)"), ("_NoOpProfiler(WithoutProfiler)",) * 2),
}

CASES = [(side, nvtx) for side in ("stock", "shim") for nvtx in ("without", "with")]


@pytest.fixture(scope="module")
def tables(tmp_path_factory, collector):
    """(stock or shim, with or without nvtx) to (report, folder); two programs at a time."""
    nvtx = tmp_path_factory.mktemp("nvtx")
    shutil.copy(launch.HERE / "nvtx_stand_in.py", nvtx / "nvtx.py")

    def run(case):
        folder = tmp_path_factory.mktemp("-".join(case))
        with socket.socket() as port:
            port.bind(("127.0.0.1", 0))
            number = str(port.getsockname()[1])
        address = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": number}
        off = {"XPU_SHIM_DISABLE": launch.OFF} if case[0] == "stock" else {}
        path = (nvtx,) if case[1] == "with" else ()
        return launch.run("table.py", folder, path=path, **address, **off, **collector), folder

    return launch.run_together({case: lambda case=case: run(case) for case in CASES})


@pytest.mark.parametrize(("side", "nvtx"), CASES)
def test_the_table(tables, side, nvtx):
    expected = UNCHANGED | NSYS[nvtx] | {row: cells[side == "shim"] for row, cells in CHANGED.items()}
    seen = tables[side, nvtx][0]["rows"]
    assert {row: (seen[f"{row} outer"], seen[f"{row} inner"]) for row in expected} == expected
    assert len(seen) == 2 * len(expected)


@pytest.mark.parametrize("nvtx", ["without", "with"])
def test_witness_stock_markers_send_no_itt_range(tables, nvtx):
    report, folder = tables["stock", nvtx]
    assert launch.read_log(folder / "itt").events == []
    source = {"without": {"profile", "performance"}, "with": {"nvtx_profile"}}[nvtx]
    assert set(report["markers"].values()) == source


@pytest.mark.parametrize("nvtx", ["without", "with"])
def test_markers_send_itt_ranges_whether_nvtx_is_importable_or_not(tables, nvtx):
    _, folder = tables["shim", nvtx]
    assert launch.read_log(folder / "itt").ranges == ["timer", ".range", "..annotated"]


def test_witness_an_unknown_tool_is_taken_without_a_word_by_stock(tables):
    report, _ = tables["stock", "without"]
    assert report["warnings"] == []
    assert report["no tool_config"].startswith("AttributeError: ")
    assert report["foreign"] == []


def test_an_unknown_tool_is_warned_about_once_with_the_known_names(tables):
    report, _ = tables["shim", "without"]
    assert [line.split(" ")[0] for line in report["warnings"]] == ["profiler.tool='custom'", "profiler.tool='unknown'"]
    for line in report["warnings"]:
        assert "Known are nsys, npu, torch, torch_memory, precision_debugger, vtune, " in line


def test_a_tool_from_elsewhere_is_made_from_its_target_and_driven_by_verl(tables):
    report, _ = tables["shim", "without"]
    assert report["foreign"] == ["made for rank 0, depth 5", "start", "step", "stop"]


def test_a_profiler_configuration_without_tool_config_is_empty(tables):
    assert tables["shim", "without"][0]["no tool_config"] == "VTuneProfiler"
