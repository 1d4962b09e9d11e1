"""Where a tool's configuration is found, and what is said of one that cannot be used."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from xpu_shim.profiling import driver, settings, tools
from xpu_shim.profiling.config import ToolConfigError, VTuneToolConfig


def config(entries):
    return SimpleNamespace(tool_config=entries)


@pytest.mark.parametrize("given", [None, {}, "???"])
@pytest.mark.parametrize("entries", [None, {}, "???", {"npu": {"discrete": True}}, {"vtune": None}, {"vtune": {}}])
def test_vtune_needs_no_entry(given, entries):
    assert tools.configuration("vtune", config(entries), given) == VTuneToolConfig()


@pytest.mark.parametrize("given", [None, {}, {"discrete": True}, {"npu": {}, "vtune": {"discrete": True}}])
def test_the_tools_own_entry_is_found_wherever_it_is(given):
    entries = {"npu": {}, "vtune": {"discrete": True}}
    assert tools.configuration("vtune", config(entries), given) == VTuneToolConfig(discrete=True)


def test_an_object_is_taken_as_it_is():
    made = SimpleNamespace(discrete=True)
    assert tools.configuration("vtune", config({}), made) is made
    assert tools.configuration("custom", config({}), made) is made


def test_a_tool_nobody_configured_has_none():
    assert tools.configuration("custom", config({"npu": {}}), None) is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"discrete": "yes"}, "discrete='yes' is not allowed; use true"),
        ({"discret": True}, "has the key 'discret'; known are discrete, name and _target_"),
        (7, "profiler.tool_config.vtune is 7; a mapping"),
    ],
)
def test_an_entry_that_cannot_be_used_is_one_clear_error(entry, message):
    with pytest.raises(ToolConfigError, match=message.replace("(", r"\(")):
        tools.configuration("vtune", config({"vtune": entry}), entry)


@pytest.mark.parametrize("path", ["nowhere", "no.such.Module", "json.NoSuchClass"])
def test_a_profiler_class_that_cannot_be_imported_is_named(path):
    with pytest.raises(ToolConfigError, match="profiler_cls='" + path):
        tools.profiler("custom", 0, None, SimpleNamespace(profiler_cls=path), None)


def test_a_profiler_class_is_called_as_upstream_calls_its_backends():
    made = tools.profiler("custom", 3, "config", SimpleNamespace(profiler_cls="types.SimpleNamespace"), "actor")
    assert (made.rank, made.config, made.save_file_prefix) == (3, "config", "actor")


@pytest.mark.parametrize("tool", [None, "???", *tools.STOCK])
def test_upstreams_tools_are_upstreams(tool):
    assert tools.is_stock(tool)


@pytest.mark.parametrize(
    ("value", "steps"),
    [
        (None, []),
        ({}, []),
        ({"global_profiler": None}, []),
        ({"global_profiler": {"steps": None}}, []),
        ({"global_profiler": {"steps": []}}, []),
        ({"global_profiler": {"steps": [2, 5]}}, [2, 5]),
    ],
)
def test_profiled_steps_of_a_run(value, steps):
    assert driver.profiled_steps(value) == steps


@pytest.mark.parametrize(("value", "meaning"), [("", "auto"), ("auto", "auto"), ("1", "1"), (" 0 ", "0")])
def test_the_setting_on_markers(monkeypatch, value, meaning):
    monkeypatch.setenv("XPU_SHIM_MARKERS", value)
    assert settings.markers() == meaning


def test_an_unknown_setting_is_warned_about_and_counts_as_auto(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(settings, "warn_once", told.append)
    monkeypatch.setenv("XPU_SHIM_MARKERS", "yes")
    assert settings.markers() == "auto"
    assert told[0].startswith("XPU_SHIM_MARKERS='yes' is not known. Allowed: auto ")
