"""Ray: its release, its memory monitor, its visibility variables."""

from __future__ import annotations

from xpu_shim.core.versions import within
from xpu_shim.devices.rayenv import NOSET_VARIABLES
from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import number
from xpu_shim.doctor.machine import Machine

#: Ray releases the patches are written for, half-open.
SUPPORTED = ("2.53", "2.61")


def _ray(machine: Machine) -> str | None:
    return machine.installed("ray")


@check(
    "ray.version",
    "Ray is a release the patches know",
    "Ray before 2.58 writes ONEAPI_DEVICE_SELECTOR=0,1 without a backend, with which torch's import crashes; without "
    "the patch for its release verl ends with `ValueError: Total available GPUs 0 is less than total desired GPUs`.",
    "https://github.com/ray-project/ray/pull/64440",
)
def version(machine: Machine) -> Finding:
    found = _ray(machine)
    if found is None:
        return skipped("Ray is not installed")
    if within(found, SUPPORTED):
        return ok(found)
    return warning(f"Ray {found}; known are {SUPPORTED[0]} to below {SUPPORTED[1]}", "pip install 'ray>=2.58,<2.61'")


@check(
    "ray.memory_monitor",
    "Ray's memory monitor is on",
    "Switched off, the kernel kills instead of Ray, and it may take the driver or the raylet. The monitor "
    "does not count "
    "address space (VmPeak); what fills the host is real: workers map every visible card's memory.",
    "https://github.com/vllm-project/vllm/issues/53822",
)
def memory_monitor(machine: Machine) -> Finding:
    if _ray(machine) is None:
        return skipped("Ray is not installed")
    value = machine.environ.get("RAY_memory_monitor_refresh_ms")
    if value != "0":
        return ok(f"refresh {value or 250} ms")
    return warning(
        "RAY_memory_monitor_refresh_ms=0 switches it off",
        "unset RAY_memory_monitor_refresh_ms   # see memory.host_budget; RAY_memory_usage_threshold=0.98 "
        "leaves more room",
    )


@check(
    "ray.noset",
    "the variable that tells Ray to leave the devices visible is the one of this release",
    "Ray up to 2.57 reads the ONEAPI_DEVICE_SELECTOR one, Ray from 2.58 on the ZE_AFFINITY_MASK one. The other is "
    "ignored, and verl believes something else than Ray does: every rank on device 0.",
    "https://github.com/vllm-project/vllm/pull/58079",
)
def noset(machine: Machine) -> Finding:
    found = _ray(machine)
    if found is None:
        return skipped("Ray is not installed")
    given = [name for name in NOSET_VARIABLES if machine.environ.get(name)]
    if not given:
        return ok("none is set; the shim needs none")
    right = NOSET_VARIABLES[0] if number(found) < (2, 58) else NOSET_VARIABLES[1]
    if right in given:
        return ok(f"{right} for Ray {found}")
    return warning(
        f"{', '.join(given)} is set, Ray {found} reads {right}", f"unset {' '.join(given)}; export {right}=1"
    )


@check(
    "ray.cuda_visible_devices",
    "no CUDA_VISIBLE_DEVICES on an Intel machine",
    "It restricts nothing here: all cards stay visible, and a job that believed in it lands on another's card "
    "(`XPU out of memory`).",
    "https://github.com/vllm-project/vllm/pull/56015",
)
def cuda_visible_devices(machine: Machine) -> Finding:
    if not machine.cards:
        return skipped("no discrete Intel GPU")
    value = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return ok("not set")
    return warning(
        f"CUDA_VISIBLE_DEVICES={value}", f"unset CUDA_VISIBLE_DEVICES; export ZE_AFFINITY_MASK={value or '0'}"
    )


@check(
    "ray.dpctl",
    "dpctl does not start Level Zero in Ray's workers before the shim can",
    "Ray counts cards through dpctl in every worker, which starts Level Zero; a mask that Ray writes afterwards is "
    "ignored, and every rank computes on device 0.",
    "https://github.com/intel/torch-xpu-ops/issues/2089",
)
def dpctl(machine: Machine) -> Finding:
    if _ray(machine) is None:
        return skipped("Ray is not installed")
    found = machine.installed("dpctl")
    if found is None:
        return ok("dpctl is not installed; the shim counts from sysfs")
    if machine.environ.get("XPU_SHIM") == "0" or "ray.intel_accelerator" in machine.environ.get("XPU_SHIM_DISABLE", ""):
        return error(f"dpctl {found}, and the patch ray.intel_accelerator is off", "pip uninstall -y dpctl")
    return ok(f"dpctl {found}; the patch ray.intel_accelerator counts from sysfs instead")
