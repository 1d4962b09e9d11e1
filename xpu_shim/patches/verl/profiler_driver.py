"""The driver's markers are on when `global_profiler.steps` names steps to profile."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.profiler_driver",
    targets=("verl.utils.tracking:Tracking.__init__",),
    why=(
        "The driver has no profiler of its own, only markers around each stage (gen, old_log_prob, update_actor, ...), "
        "and none of verl's trainers tells them whether the run is profiled."
    ),
    how=(
        "Every trainer hands its whole configuration to `Tracking` before its first step; markers are turned on in "
        "that process if `global_profiler.steps` is not empty. VTune drops what falls outside a collected step."
    ),
    upstream=("https://github.com/verl-project/verl/pull/7917",),
    remove_when="verl tells markers whether the run is profiled.",
    versions={"verl": ("0.7.1", "0.11")},
    required=False,
)


def apply(install: Install) -> None:
    install.replace("Tracking.__init__", turn_on_markers)


def turn_on_markers(original):
    def __init__(self, project_name, experiment_name, default_backend="console", config=None):
        original(self, project_name, experiment_name, default_backend, config)
        from xpu_shim.profiling.driver import observe

        observe(config)

    return __init__
