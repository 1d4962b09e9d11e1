"""Notes on exceptions: added once, to known errors only, and never in the way."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from xpu_shim.doctor.notes import PREFIX, annotate

AVG = "oneCCL: coll_param.cpp:455 validate: EXCEPTION: average operation is not supported for the scheduler path"


def text_of(error):
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def test_a_known_error_gets_cause_and_cure():
    error = RuntimeError(AVG)
    annotate(error)
    assert "oneCCL cannot average" in text_of(error)
    assert "torch-xpu-ops/issues/2361" in text_of(error)
    if sys.version_info >= (3, 11):
        assert str(error) == AVG
    else:
        assert str(error).startswith(AVG)


def test_only_once():
    error = RuntimeError(AVG)
    for _ in range(3):
        annotate(error)
    assert text_of(error).count("oneCCL cannot average") == 1


def test_the_error_keeps_its_type_arguments_and_traceback():
    def fail():
        try:
            raise RuntimeError(AVG, 7)
        except RuntimeError as error:
            annotate(error)
            raise

    with pytest.raises(RuntimeError) as caught:
        fail()
    assert type(caught.value) is RuntimeError
    assert caught.value.args[1] == 7
    assert AVG in str(caught.value.args[0])


@pytest.mark.parametrize(
    "error", [ValueError("something else"), KeyError("key"), OSError(2, "No such file"), SystemExit(1)]
)
def test_an_unknown_error_stays_as_it_is(error):
    before = (str(error), error.args)
    annotate(error)
    assert (str(error), error.args) == before
    assert not getattr(error, "__notes__", ())


def test_the_type_counts_too():
    error = KeyError("NPU")
    annotate(error)
    assert PREFIX in text_of(error)


def test_an_error_that_cannot_be_shown():
    class Broken(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    annotate(Broken())


def test_an_error_with_slots_and_no_room_for_a_note():
    class Fixed(RuntimeError):
        add_note = None

    annotate(Fixed(AVG))


def test_a_very_long_text_is_searched_at_its_ends():
    error = RuntimeError("x" * 1_000_000 + AVG)
    start = time.perf_counter()
    annotate(error)
    assert PREFIX in text_of(error)
    assert time.perf_counter() - start < 60  # a pattern that backtracks would take hours


def test_importing_it_is_light():
    code = (
        "import sys; before = set(sys.modules); import xpu_shim.doctor.notes; "
        "print(sorted(name.partition('.')[0] for name in set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    for heavy in ("rich", "packaging", "torch", "importlib_metadata", "asyncio"):
        assert f"'{heavy}'" not in done.stdout
