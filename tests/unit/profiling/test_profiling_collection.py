"""Pause and resume of several profilers of one process, and who is told when neither is possible."""

from __future__ import annotations

import pytest

from xpu_shim.profiling import collection, itt


@pytest.fixture
def calls(monkeypatch):
    """What the backend is asked, with a counter that starts afresh."""
    seen: list[str] = []
    backend = itt.Backend("test", seen.append, seen.pop, lambda: seen.append("pause"), lambda: seen.append("resume"))
    monkeypatch.setattr(itt, "backend", lambda: backend)
    monkeypatch.setattr(collection, "_running", 0)
    return seen


def test_overlapping_profilers_collect_from_the_first_start_to_the_last_stop(calls):
    collection.prepare()
    collection.resume()
    collection.resume()
    collection.pause()
    assert collection.running()
    collection.pause()
    assert calls == ["pause", "resume", "pause"]
    assert not collection.running()


def test_a_profiler_made_while_another_collects_does_not_pause_it(calls):
    collection.resume()
    collection.prepare()
    assert calls == ["resume"]


def test_a_pause_too_many_does_nothing(calls):
    collection.pause()
    assert calls == []
    collection.resume()
    assert calls == ["resume"]


def test_without_pause_there_is_one_warning_with_the_next_step(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(collection, "warn_once", lambda message: told.append(message) if message not in told else None)
    monkeypatch.setattr(itt, "backend", lambda: itt.Backend("test", print, print, None, None))
    monkeypatch.setattr(collection, "_running", 0)
    collection.prepare()
    collection.resume()
    collection.pause()
    assert len(told) == 1
    assert told[0].endswith("Next step: pip install ittapi")
