"""Versions of the stack are found without importing it."""

from __future__ import annotations

import subprocess
import sys

from xpu_shim.intel import stack


def test_torch_xpu_is_read_from_the_file_on_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(
        sys, "modules", {name: module for name, module in sys.modules.items() if name != "torch.version"}
    )
    (tmp_path / "torch").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for text, expected in (
        ("xpu: str | None = '20260000'\n", "20260000"),
        ("xpu = '20250302'\n", "20250302"),
        ("xpu: str | None = None\n", ""),
    ):
        (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.13.0'\n{text}")
        assert stack.torch_xpu() == expected


def test_level_zero_driver_version_is_in_its_file_name(tmp_path):
    for name in ("libze_intel_gpu.so.1", "libze_intel_gpu.so.1.6.33578"):
        (tmp_path / name).touch()
    assert stack.level_zero_driver((str(tmp_path),)) == "1.6.33578"
    assert stack.level_zero_driver((str(tmp_path / "absent"),)) == ""


def test_numa_nodes(tmp_path):
    for node, cpus in ((0, "0-15,32-47"), (1, "16-31,48-63")):
        folder = tmp_path / "devices" / "system" / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    assert stack.numa_nodes(str(tmp_path)) == {0: "0-15,32-47", 1: "16-31,48-63"}


def test_reading_everything_imports_no_part_of_the_stack():
    code = (
        "import sys; from xpu_shim.intel import stack; stack.read();"
        "print(sorted(set(sys.modules) & {'torch', 'ray', 'vllm', 'verl'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
