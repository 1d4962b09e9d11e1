"""The ranges of a training step: verl's own actor worker on two simulated devices, under a recording ITT collector."""

from __future__ import annotations

import json
import socket

import profiling_programs as launch
import pytest

ACTOR = "actor_rollout_ref.actor.profiler"

#: No profiling; the whole of step 2 on rank 1; each stage of step 1 on its own, on all ranks.
ROUNDS = [
    {"name": "off", "profiled": [], "overrides": []},
    {
        "name": "whole",
        "profiled": [2],
        "overrides": [
            "global_profiler.tool=vtune",
            "global_profiler.steps=[2]",
            f"{ACTOR}.enable=True",
            f"{ACTOR}.ranks=[1]",
        ],
    },
    {
        "name": "discrete",
        "profiled": [1],
        "overrides": [
            "global_profiler.tool=vtune",
            "global_profiler.steps=[1]",
            f"{ACTOR}.enable=True",
            f"{ACTOR}.all_ranks=True",
            f"+{ACTOR}.tool_config.vtune.discrete=True",
        ],
    },
]

#: What the driver's markers send of a step that this rank does not profile.
DRIVER = ["step", ".old_log_prob", ".update_actor"]


def step(folder, model, collector, rounds, ranks, **environment):
    """Run the rounds on this many ranks; returns their output."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1])}
    processes = [
        launch.start(
            "rank_step.py",
            folder,
            str(model),
            json.dumps(rounds),
            RANK=str(rank),
            WORLD_SIZE=str(ranks),
            LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(ranks),
            **address,
            **collector,
            **environment,
        )
        for rank in range(ranks)
    ]
    return [launch.finish(process, folder, rank=str(rank)) for rank, process in enumerate(processes)]


@pytest.fixture(scope="module")
def logs(tmp_path_factory, model, collector):
    """(round, rank) to the log."""
    folder = tmp_path_factory.mktemp("step")
    step(folder, model, collector, ROUNDS, 2)
    return {
        (each["name"], rank): launch.read_log(folder / f"itt.{each['name']}.{rank}")
        for each in ROUNDS
        for rank in (0, 1)
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_without_profiling_nothing_is_sent(logs, rank):
    assert logs["off", rank].events == []


def test_a_chosen_rank_collects_the_chosen_step_with_its_stages(logs):
    events = logs["whole", 1].events
    assert events == [
        *["pause", "pause"],  # the outer and the inner worker, when they are made
        *DRIVER,
        "step",
        "resume",
        ".old_log_prob",
        "..actor_compute_log_prob",
        ".update_actor",
        "..actor_update",
        "pause",
    ]


def test_another_rank_sends_no_stage_and_does_not_collect(logs):
    assert logs["whole", 0].events == ["pause", "pause", *DRIVER, *DRIVER]


@pytest.mark.parametrize("rank", [0, 1])
def test_discrete_collects_each_stage_on_its_own(logs, rank):
    first = ["step", ".old_log_prob", "resume", "..actor_compute_log_prob", "pause"]
    first += [".update_actor", "resume", "..actor_update", "pause"]
    assert logs["discrete", rank].events == ["pause", "pause", *first, *DRIVER]


def test_witness_stock_verl_sends_nothing_under_the_same_configuration(tmp_path, model, collector):
    rounds = [ROUNDS[1] | {"overrides": [*ROUNDS[1]["overrides"], f"{ACTOR}.all_ranks=True"]}]
    step(tmp_path, model, collector, rounds, 1, XPU_SHIM_DISABLE=launch.OFF)
    assert launch.read_log(tmp_path / "itt.whole.0").events == []
