"""Level Zero, OpenCL and the kernel: are they there, one of each, and not one of the known bad ones?"""

from __future__ import annotations

import os

from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import (
    battlemage,
    describe,
    driver_build,
    find_library,
    level_zero_drivers,
    library_path,
    number,
    wheel_folders,
)
from xpu_shim.doctor.machine import Machine
from xpu_shim.intel.stack import DRIVER_FOLDERS

#: First compute-runtime build that tells free memory through Level Zero's "usable memory" extension (release 26.18).
FREE_MEMORY_BUILD = 38308
#: First compute-runtime build with the Arc A regression (release 26.14), as reported.
ARC_A_BUILD = 37833
ARC_A = range(0x5690, 0x56C3)
#: The xe driver takes Battlemage without force_probe from here on.
BATTLEMAGE_KERNEL = (6, 12)

INSTALL = (
    "sudo apt install libze1 libze-intel-gpu1 intel-opencl-icd   # from Intel's client or data center GPU packages"
)


@check(
    "driver.level_zero_loader",
    "the Level Zero loader (libze_loader.so.1)",
    "`ImportError: libze_loader.so.1: cannot open shared object file`, or zero devices.",
    "https://dgpu-docs.intel.com/driver/installation.html",
)
def level_zero_loader(machine: Machine) -> Finding:
    found = find_library(machine, "libze_loader.so", [*library_path(machine), *wheel_folders(machine), *DRIVER_FOLDERS])
    if found:
        return ok(found[0])
    if not machine.gpus:
        return skipped("no Intel GPU")
    return error(f"not in {', '.join(DRIVER_FOLDERS)}, LD_LIBRARY_PATH or the Python environment", INSTALL)


@check(
    "driver.level_zero_driver",
    "one Level Zero GPU driver (libze_intel_gpu.so)",
    "Without it the loader finds no GPU: `XPU device count is zero!`. With two, which one is loaded is a "
    "matter of luck.",
    "https://dgpu-docs.intel.com/driver/installation.html",
)
def level_zero_driver(machine: Machine) -> Finding:
    drivers = level_zero_drivers(machine)
    if not drivers:
        if not machine.gpus:
            return skipped("no Intel GPU")
        return error(f"none in {', '.join(DRIVER_FOLDERS)}", INSTALL)
    if len(set(drivers.values())) > 1:
        listed = ", ".join(f"{path} ({version})" for path, version in drivers.items())
        return error(listed, "dpkg -S " + " ".join(drivers) + "   # remove the one no package, or an old one, owns")
    path, version = next(iter(drivers.items()))
    return ok(f"{path} ({version})")


@check(
    "driver.free_memory",
    "the driver tells how much memory is free",
    "vLLM on an empty card: `ValueError: Free memory on device xpu:0 (0.0/22.71 GiB) on startup is less "
    "than desired GPU "
    "memory utilization`, or a KV cache of the wrong size.",
    "https://github.com/vllm-project/vllm/pull/49482",
)
def free_memory(machine: Machine) -> Finding:
    if not machine.cards:
        return skipped("no discrete Intel GPU")
    build = driver_build(machine)
    if build is None:
        return skipped("no Level Zero driver found, see driver.level_zero_driver")
    if build >= FREE_MEMORY_BUILD:
        return ok(f"compute-runtime build {build}")
    return warning(
        f"compute-runtime build {build}; reliable from {FREE_MEMORY_BUILD} (release 26.18)",
        "sudo apt install --only-upgrade libze-intel-gpu1 intel-opencl-icd   # 26.18 or later",
    )


@check(
    "driver.arc_a_regression",
    "the driver is not one that breaks oneDNN on Arc A",
    "`could not create a primitive` with CL_OUT_OF_HOST_MEMORY in every linear layer, whatever the selector says.",
    "https://github.com/intel/compute-runtime/issues/963",
)
def arc_a_regression(machine: Machine) -> Finding:
    cards = [gpu for gpu in machine.cards if gpu.device_id in ARC_A]
    if not cards:
        return skipped("no Arc A card")
    build = driver_build(machine)
    if build is None:
        return skipped("no Level Zero driver found, see driver.level_zero_driver")
    if build < ARC_A_BUILD:
        return ok(f"compute-runtime build {build}")
    return warning(
        f"{describe(cards[0])} with compute-runtime build {build}; reported from {ARC_A_BUILD} (26.14) on",
        "sudo apt install libze-intel-gpu1=26.09* intel-opencl-icd=26.09*   # the last release reported good",
    )


@check(
    "driver.opencl",
    "an OpenCL driver for the GPU is registered",
    "oneDNN's attention needs an OpenCL device: `RuntimeError: could not create a primitive`.",
    "https://github.com/kahlun/verl/pull/1",
)
def opencl(machine: Machine) -> Finding:
    if not machine.gpus:
        return skipped("no Intel GPU")
    broken = []
    for name in machine.listdir("/etc/OpenCL/vendors") or ():
        if not name.endswith(".icd"):
            continue
        library = (machine.read(f"/etc/OpenCL/vendors/{name}") or "").splitlines()[:1]
        if not library or "igdrcl" not in library[0]:
            continue
        found = (
            machine.exists(library[0])
            if library[0].startswith("/")
            else find_library(machine, library[0], [*DRIVER_FOLDERS, "/usr/lib/x86_64-linux-gnu/intel-opencl"])
        )
        if found:
            return ok(f"{name}: {library[0]}")
        broken.append(f"/etc/OpenCL/vendors/{name} names {library[0]}, which does not exist")
    return warning(
        "; ".join(broken) or "/etc/OpenCL/vendors registers none", "sudo apt install intel-opencl-icd && clinfo -l"
    )


@check(
    "driver.kernel",
    "the kernel is new enough for the cards",
    "Arc B cards on an old kernel hang or are not driven at all: GuC timeouts, "
    "`zeMemOpenIpcHandle, code: ZE_RESULT_ERROR_INVALID_ARGUMENT`, `UR_RESULT_ERROR_DEVICE_LOST`.",
    "https://github.com/vllm-project/vllm/issues/48953",
)
def kernel(machine: Machine) -> Finding:
    cards = battlemage(machine)
    if not cards:
        return skipped("no Arc B card")
    text = machine.need("/proc/sys/kernel/osrelease")
    if number(text)[:2] >= BATTLEMAGE_KERNEL:
        return ok(text)
    return warning(
        f"{text} with {describe(cards[0])}; {'.'.join(map(str, BATTLEMAGE_KERNEL))} is the first that drives it",
        "sudo apt install linux-generic-hwe-24.04 && sudo reboot",
    )


@check(
    "driver.gpu_hangs",
    "no GPU has hung since the last boot",
    "The kernel reset a card: what ran there ends with `UR_RESULT_ERROR_DEVICE_LOST`, and a job beside it may hang.",
    "https://docs.kernel.org/gpu/xe/xe_devcoredump.html",
)
def gpu_hangs(machine: Machine) -> Finding:
    if not machine.gpus:
        return skipped("no Intel GPU")
    addresses = {gpu.address: gpu for gpu in machine.gpus}
    hung = []
    for name in machine.listdir("/sys/class/devcoredump") or ():
        if name.startswith("devcd"):
            failing = machine.path(f"/sys/class/devcoredump/{name}/failing_device")
            gpu = addresses.get(os.path.basename(os.path.realpath(failing)))
            if gpu is not None:
                hung.append(f"{name}: {describe(gpu)}")
    if not hung:
        return ok("/sys/class/devcoredump holds no dump of an Intel GPU")
    return warning(", ".join(hung), "sudo dmesg | grep -E 'xe|i915' | grep -iE 'hang|reset|timedout|guc' | tail")
