"""What a Ray job's workers get from the driver's environment."""

from __future__ import annotations

import json

from xpu_shim.devices.rayenv import add_to_runtime_env
from xpu_shim.patches.ray.runtime_environment import extended

DRIVER = {
    "ZE_AFFINITY_MASK": "2,3",
    "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE",
    "CCL_ALLREDUCE": "ring",
    "XPU_SHIM_VISIBILITY": "mask",
    "XPU_SHIM_ARMED": "1",
    "ONEAPI_DEVICE_SELECTOR": "level_zero:0",
    "CCL_LOCAL_RANK": "0",
    "PATH": "/bin",
    "HOME": "/home/me",
}

CARRIED = {
    "ZE_AFFINITY_MASK": "2,3",
    "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE",
    "CCL_ALLREDUCE": "ring",
    "XPU_SHIM_VISIBILITY": "mask",
    "XPU_SHIM_ARMED": "1",
}


def test_settings_are_carried_and_the_rest_is_not():
    assert add_to_runtime_env({}, DRIVER) == CARRIED


def test_what_verl_or_the_user_put_there_wins_but_the_selector_goes():
    given = {"CCL_ALLREDUCE": "topo", "NCCL_DEBUG": "WARN", "ONEAPI_DEVICE_SELECTOR": "level_zero:1"}
    assert add_to_runtime_env(given, DRIVER) == {**CARRIED, "CCL_ALLREDUCE": "topo", "NCCL_DEBUG": "WARN"}


def test_a_runtime_env_keeps_its_other_fields_and_is_not_changed_in_place():
    given = {"working_dir": None, "env_vars": {"A": "1"}}
    assert extended(given, DRIVER) == {"working_dir": None, "env_vars": {"A": "1", **CARRIED}}
    assert given == {"working_dir": None, "env_vars": {"A": "1"}}


def test_nothing_to_carry_leaves_no_runtime_env():
    assert extended(None, {"PATH": "/bin"}) is None


def test_what_a_submitted_job_sets_is_not_repeated():
    # Ray raises on a variable that both the job and ray.init set.
    job = {"runtime_env": {"env_vars": {"CCL_ALLREDUCE": "direct", "ZE_AFFINITY_MASK": "0"}}}
    environ = {**DRIVER, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}
    names = set(CARRIED) - {"CCL_ALLREDUCE", "ZE_AFFINITY_MASK"}
    assert extended(None, environ) == {"env_vars": {name: CARRIED[name] for name in names}}
