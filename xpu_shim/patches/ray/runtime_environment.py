"""Workers of a Ray job get the driver's device and oneCCL settings, on every node."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="ray.runtime_environment",
    targets=("ray._private.worker:init",),
    why=(
        "Workers inherit the environment of the Ray node that starts them, not of the training command. On a cluster "
        "that was started before, ZE_AFFINITY_MASK and every CCL_ setting of the command are lost, and so is the "
        "sign that the shim has work there; an ONEAPI_DEVICE_SELECTOR exported for the job breaks oneDNN ('could not "
        "create a primitive') and Triton in the workers."
    ),
    how=(
        "`ray.init` adds the driver's mask and its XPU_SHIM*, CCL_*, ZE_* and related settings to the job's runtime "
        "environment and takes the selector out. What verl, the user or `ray job submit` put there is kept."
    ),
    upstream=("https://github.com/kahlun/verl/pull/1", "https://github.com/ray-project/ray/pull/64440"),
    remove_when="verl forwards these settings, or Ray carries a driver's accelerator settings to its workers.",
    versions={"ray": ("2.53", "2.61")},
    processes=("driver",),
    required=False,
)


def apply(install: Install) -> None:
    install.replace("init", with_settings)


def with_settings(original):
    def init(*args, **kwargs):
        import os

        kwargs["runtime_env"] = extended(kwargs.get("runtime_env"), os.environ)
        return original(*args, **kwargs)

    return init


def extended(runtime_env, environ):
    """A runtime environment (dict, `ray.runtime_env.RuntimeEnv`, or None) with the settings of `environ` added."""
    from xpu_shim.devices.rayenv import add_to_runtime_env

    given = dict(runtime_env or {})
    merged = add_to_runtime_env(dict(given.get("env_vars") or {}), environ)
    # Ray refuses a variable that both the submitted job and the driver set, so what the job has is not repeated.
    submitted = job_variables(environ)
    kept = {
        name: value for name, value in merged.items() if name not in submitted or name in (given.get("env_vars") or {})
    }
    if kept:
        given["env_vars"] = kept
    return type(runtime_env)(**given) if runtime_env is not None and type(runtime_env) is not dict else given or None


def job_variables(environ):
    """Names of the variables that `ray job submit` already gives this job's workers."""
    import json

    try:
        submitted = json.loads(environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
        return set((submitted.get("runtime_env") or {}).get("env_vars") or ())
    except (ValueError, AttributeError):
        return set()
