"""The engine's pure parts: declarations, versions, settings, fingerprints, activation."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_shim import _targets, activation
from xpu_shim.core import drift, log, settings, versions
from xpu_shim.core.patch import Patch, PatchDeclarationError, Target

ROOT = Path(__file__).resolve().parents[3]

GOOD = {
    "id": "torch.example",
    "targets": ("torch.xpu:name",),
    "why": "w",
    "how": "h",
    "remove_when": "r",
    "versions": {"torch": ("2.11", "2.16")},
}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("id", "Example", "area.name"),
        ("targets", (), "no targets"),
        ("targets", ("torch.xpu.name",), "module:qualname"),
        ("processes", ("trainer",), "allowed are"),
        ("processes", (), "allowed are"),
        ("versions", {"torch": ("2.11",)}, "first unsupported"),
        ("versions", {"torch": (">=2.11", "2.16")}, "first unsupported"),
    ],
)
def test_a_wrong_declaration_is_refused_with_the_field(field, value, message):
    with pytest.raises(PatchDeclarationError, match=message):
        Patch(**{**GOOD, field: value})


def test_targets_are_parsed_and_the_optional_mark_is_not_part_of_the_name():
    assert Target.parse("a.b:C.d?") == Target("a.b", "C.d", True)
    assert str(Target.parse("a.b:C.d?")) == "a.b:C.d"


@pytest.mark.parametrize(
    ("version", "bounds", "inside"),
    [
        ("2.11.0", ("2.11", "2.16"), True),
        ("2.13.0+xpu", ("2.11", "2.16"), True),
        ("2.16.0.dev20261001+xpu", ("2.11", "2.16"), False),
        ("2.15.9rc1", ("2.11", "2.16"), True),
        ("2.10.1", ("2.11", "2.16"), False),
        ("0.9", ("0.9.0", "0.10"), True),
        ("0.10.0", ("0.9.0", "0.10"), False),
        ("0.9.1.post2", ("0.9.1", "0.9.2"), True),
    ],
)
def test_half_open_ranges(version, bounds, inside):
    assert versions.within(version, bounds) is inside


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_a_range_is_half_open_for_every_pair(low, high):
    from packaging.version import Version

    low, high = ".".join(map(str, low)), ".".join(map(str, high))
    assert versions.within(low, (low, high)) is (Version(low) < Version(high))
    assert versions.within(high, (low, high)) is False


def test_a_version_without_numbers_is_an_error():
    with pytest.raises(ValueError, match="does not begin with a number"):
        versions.release("unknown")


def test_the_version_of_a_half_made_package_comes_from_its_file(tmp_path, monkeypatch):
    (tmp_path / "halfmade" / "version").mkdir(parents=True)
    (tmp_path / "halfmade" / "version" / "version").write_text("0.9.1\n")
    (tmp_path / "halfmade" / "__init__.py").write_text(
        "from xpu_shim.core import versions\nseen = versions.of_imported('halfmade')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import halfmade

    assert halfmade.seen == "0.9.1"


def test_a_package_without_any_version_says_where_it_was_looked_for(tmp_path, monkeypatch):
    (tmp_path / "nameless_package.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    import nameless_package  # noqa: F401

    with pytest.raises(versions.UnknownVersionError, match="no __version__, no version file"):
        versions.of_imported("nameless_package")


@pytest.fixture
def warnings(monkeypatch):
    seen = []
    monkeypatch.setattr(log, "_warned", set())
    monkeypatch.setattr(log.logger(), "warning", seen.append)
    return seen


def test_an_unknown_id_is_one_warning_that_names_the_nearest(monkeypatch, warnings):
    monkeypatch.setenv("XPU_SHIM_DISABLE", "verl.noset_variable")
    for _ in range(3):
        assert settings.off_reason("verl.noset_variables", _targets.PATCHES) is None
    assert len(warnings) == 1
    assert "XPU_SHIM_DISABLE" in warnings[0]
    assert "did you mean verl.noset_variables" in warnings[0]


def test_disable_and_only(monkeypatch):
    known = ("a.one", "a.two")
    monkeypatch.setenv("XPU_SHIM_DISABLE", " a.one ,")
    assert settings.off_reason("a.one", known) == "XPU_SHIM_DISABLE"
    assert settings.off_reason("a.two", known) is None
    monkeypatch.setenv("XPU_SHIM_DISABLE", "")
    monkeypatch.setenv("XPU_SHIM_ONLY", "a.two")
    assert settings.off_reason("a.one", known) == "XPU_SHIM_ONLY"
    assert settings.off_reason("a.two", known) is None


@pytest.mark.parametrize(
    "source",
    [
        "def f(a, b=1, *c, d, e=2, **g): pass",
        "def f(a, /, b, *, c): pass",
        "def f(): pass",
        "async def f(x=None, *args): pass",
        "def f(a, b, /, c=3, *, d=4): pass",
    ],
)
def test_the_two_ways_to_a_signature_agree(source):
    namespace: dict = {}
    exec(source, namespace)
    assert drift.signature_of(namespace["f"]) == drift.signature_of_node(ast.parse(source).body[0])


def test_a_body_fingerprint_ignores_docstrings_and_layout_and_sees_code():
    base = drift.fingerprint("def f(a):\n    '''One.'''\n    return a + 1\n", "f")
    same = drift.fingerprint("if True:\n  def f(a):\n\n    # why\n    return (a +\n 1)\n", "f")
    other = drift.fingerprint("def f(a):\n    return a + 2\n", "f")
    assert base == same
    assert base["signature"] == other["signature"]
    assert base["body"] != other["body"]


def test_fingerprints_find_methods_constants_and_conditional_definitions():
    source = "try:\n  import x\nexcept ImportError:\n  class A:\n    B = 1\n    def f(self): pass\n"
    assert drift.fingerprint(source, "A.f")["signature"] == "self"
    assert drift.fingerprint(source, "A.B")["signature"] == ""
    assert drift.fingerprint(source, "A.g") is None


def test_generated_files_are_fresh():
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr


def test_one_target_has_one_owner():
    import importlib

    owners: dict[str, str] = {}
    for patch_id, name in _targets.PATCHES.items():
        for target in importlib.import_module(name).PATCH.parsed:
            assert str(target) not in owners, f"{target} belongs to {owners[str(target)]} and to {patch_id}"
            owners[str(target)] = patch_id


def test_every_target_is_in_the_lock_for_some_release():
    import importlib

    lock = drift.load_lock()
    locked = {target for prints in lock.values() for target in prints}
    for name in _targets.PATCHES.values():
        patch = importlib.import_module(name).PATCH
        missing = [str(target) for target in patch.parsed if not target.optional and str(target) not in locked]
        assert not missing, f"{patch.id}: run scripts/update_lock.sh; not in fingerprints.json: {missing}"


@pytest.mark.parametrize(
    ("files", "environment", "expected"),
    [
        ({"torch/version.py": "xpu = '20260000'\ncuda = None"}, {}, True),
        ({"torch/version.py": "from typing import Optional\nxpu: Optional[str] = None\ncuda = '12.8'"}, {}, None),
        ({"torch/version.py": "hip: str = '7.0'"}, {}, None),
        ({"torch/version.py": "cuda = None"}, {}, None),
        ({"torch/version.py": "cuda = None"}, {"XPU_SHIM": "1"}, True),
        ({"torch/version.py": "xpu = '20260000'"}, {"XPU_SHIM": "0"}, False),
        ({}, {}, None),
    ],
)
def test_activation_before_torch_is_imported(files, environment, expected, tmp_path, monkeypatch):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(activation, "_decided", None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("XPU_SHIM_SYSFS", str(tmp_path / "no-sysfs"))
    monkeypatch.delenv("XPU_SHIM", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # The finder also finds what it needs of the package itself through sys.path: it is imported already.
    import xpu_shim.intel.devices  # noqa: F401

    assert activation.decide().active is expected
    monkeypatch.setattr(activation, "_decided", None)


@pytest.mark.parametrize(
    ("version", "ready", "expected"),
    [
        ({"xpu": "20260000", "cuda": None}, False, True),
        ({"xpu": None, "cuda": "12.8"}, True, False),
        ({"xpu": None, "hip": "7.0"}, True, False),
        ({"xpu": None, "cuda": "12.8"}, False, None),
        ({"xpu": None, "cuda": None}, True, False),
        ({"xpu": None, "cuda": None}, False, None),
    ],
)
def test_activation_with_torch_imported(version, ready, expected, tmp_path, monkeypatch):
    import importlib.machinery
    import types

    torch = types.ModuleType("torch")
    torch.__spec__ = importlib.machinery.ModuleSpec("torch", None)
    torch.__spec__._initializing = not ready
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.version", types.SimpleNamespace(**version))
    monkeypatch.setattr(activation, "_decided", None)
    monkeypatch.setenv("XPU_SHIM_SYSFS", str(tmp_path / "no-sysfs"))
    monkeypatch.delenv("XPU_SHIM", raising=False)
    assert activation.decide(torch_is_ready=ready).active is expected
    monkeypatch.setattr(activation, "_decided", None)
