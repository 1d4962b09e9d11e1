"""verl's markers, balanced in threads, coroutines and errors; and other vendors' platforms, which keep their own."""

from __future__ import annotations

import profiling_programs as launch
import pytest

#: Scenario to the ranges it sends, in the order in which they begin; a dot for each level.
RANGES = {
    "nested": ["a", ".b", "..c", ".b"],
    "raising": ["outer", ".inner", "..annotated"],
    # The first is ended first: the two above it are ended with it, and begun again.
    "out_of_order": ["a", ".b", "..c", "b", ".c"],
    # "a" and its coroutine end while "b" and its own are open above them.
    "interleaved": ["coroutine", ".a", "..coroutine", "...b", ".coroutine", "..b", "coroutine", ".b"],
    "ended_elsewhere": ["handed over", "after", "forgotten"],
    "generator_in_range": ["consumer", ".generator"],
    "odd_names": ["", "", "7", "ümlaut", "a b", "x" * 300],
    "turned_off_inside": ["outer"],
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory, collector):
    """Name to (report, folder): the scenarios, and verl on two other vendors' platforms."""

    def scenarios():
        folder = tmp_path_factory.mktemp("scenarios")
        return launch.run("scenarios.py", folder, **collector), folder

    def other(vendor):
        folder = tmp_path_factory.mktemp(vendor)
        return launch.run("other_platform.py", folder, vendor, VERL_PLATFORM=vendor), folder

    vendors = {vendor: lambda vendor=vendor: other(vendor) for vendor in ("nvidia", "huawei")}
    return launch.run_together({"scenarios": scenarios, **vendors})


@pytest.fixture(scope="module")
def scenarios(programs):
    return programs["scenarios"]


@pytest.mark.parametrize("name", sorted(RANGES))
def test_ranges_are_balanced(scenarios, name):
    report, folder = scenarios
    assert report[name] == "ok"
    assert launch.read_log(folder / f"itt.{name}").ranges == RANGES[name]


def test_ranges_of_many_threads_do_not_mix(scenarios):
    report, folder = scenarios
    assert report["many_threads"] == "ok"
    ranges = launch.read_log(folder / "itt.many_threads").ranges
    assert sorted(set(ranges)) == [".inner", *(f"thread {number}" for number in range(4))]
    assert len(ranges) == 4 * 20 * 2


def test_nothing_is_sent_before_the_run_is_known_to_be_profiled(scenarios):
    assert launch.read_log(scenarios[1] / "itt").events == []


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "before"), [("1", ["before"]), ("0", [])])
def test_the_setting_overrides_what_verl_profiles(tmp_path, collector, setting, before):
    folder = tmp_path / "run"
    report = launch.run("scenarios.py", folder, XPU_SHIM_MARKERS=setting, **collector)
    assert launch.read_log(folder / "itt").ranges == before
    assert launch.read_log(folder / "itt.nested").ranges == (RANGES["nested"] if before else [])
    assert report["raising"] == "ok"


@pytest.mark.parametrize(
    ("vendor", "modules", "calls"),
    [
        ("nvidia", ["verl.utils.profiler.performance", "verl.utils.profiler.profile"], []),
        ("huawei", ["verl.utils.profiler.mstx_profile"], ["start timer", "start range", "end 2", "end 1"]),
    ],
)
def test_other_vendors_keep_the_stock_functions(programs, vendor, modules, calls):
    report, _ = programs[vendor]
    assert report["ours"] == []
    assert report["modules"] == modules
    assert report["same object"]
    assert report["calls"] == calls
    assert report["state"].endswith("VERL_PLATFORM names another platform")


@pytest.mark.slow
def test_a_platform_set_after_the_import_gets_the_stock_behaviour(tmp_path, collector):
    report = launch.run("other_platform.py", tmp_path / "run", "late", **collector)
    assert report["timed"] == ["timer"]
    assert report["range"] == "None"
    assert launch.read_log(tmp_path / "run" / "itt").events == []


def test_a_release_that_asks_its_platform_gets_the_markers_there_and_the_patch_retires(tmp_path, collector):
    folder = tmp_path / "run"
    report = launch.run("asking_release.py", folder, XPU_SHIM="0", **collector)
    states = report["modules"]
    assert states.pop("verl.plugin.platform.platform_base") == "applied"
    assert set(states.values()) == {"retired"}
    assert report["stock functions"]
    assert report["cuda"] is None
    assert report["removed"]
    assert report["timed"] == ["timer"]
    assert launch.read_log(folder / "itt").ranges == ["timer", ".range", "..annotated"]
