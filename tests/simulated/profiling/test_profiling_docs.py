"""The commands of the page on profiling are ones that verl's stock configuration takes."""

from __future__ import annotations

import profiling_programs as launch


def test_documented_overrides_compose(tmp_path):
    report = launch.run("documented.py", tmp_path / "run", str(launch.ROOT / "docs" / "profiling.md"))
    assert sorted(str(tool) for tool, _ in report.values()) == ["None", "None", "torch", "torch_memory", "vtune"]
    assert [enabled for tool, enabled in report.values() if tool] == [True, True, True]
