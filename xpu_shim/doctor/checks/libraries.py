"""Two oneAPI releases in one process: the wheel's libraries and those of a sourced `setvars.sh`."""

from __future__ import annotations

import os
import re

from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import find_library, library_path, torch_child, wheel_folders, xpu_build
from xpu_shim.doctor.machine import CouldNotLook, Machine

#: Libraries that wheels of the oneAPI runtime bring and that a sourced oneAPI shadows.
SHADOWED = ("libsycl.so", "libur_loader.so", "libccl.so", "libumf.so", "libmpi.so", "libdnnl.so")

SHELL = (
    "start a new shell without `source /opt/intel/oneapi/setvars.sh` (look in ~/.bashrc and conda's activate.d), or: "
)


@check(
    "driver.setvars",
    "no sourced oneAPI beside the oneAPI of the torch wheels",
    "`ImportError: libur_loader.so.0: version LIBUR_LOADER_0.10 not found`, `libsycl.so.7: cannot open shared object "
    "file`, `RuntimeError: UR error`, or a segmentation fault: LD_LIBRARY_PATH wins over the wheel's libraries.",
    "https://github.com/pytorch/pytorch/issues/149953",
)
def setvars(machine: Machine) -> Finding:
    if machine.installed("intel-sycl-rt") is None:
        return skipped("torch's oneAPI runtime is not installed as wheels (intel-sycl-rt)")
    own = [os.path.realpath(folder) for folder in wheel_folders(machine)]
    foreign = [folder for folder in library_path(machine) if os.path.realpath(machine.path(folder)) not in own]
    shadowing = [path for name in SHADOWED for path in find_library(machine, name, foreign)]
    if shadowing:
        shown = ", ".join(shadowing[:3]) + (f" and {len(shadowing) - 3} more" if len(shadowing) > 3 else "")
        return error(f"LD_LIBRARY_PATH puts {shown} before the wheel's own", SHELL + "unset LD_LIBRARY_PATH")
    if machine.environ.get("SETVARS_COMPLETED") == "1":
        return warning(
            "setvars.sh was sourced in this shell (SETVARS_COMPLETED=1)",
            SHELL + "env -u LD_LIBRARY_PATH -u ONEAPI_ROOT <your command>",
        )
    return ok("LD_LIBRARY_PATH shadows nothing")


@check(
    "driver.two_runtimes",
    "one SYCL and one oneCCL in the process that imports torch",
    "torch and another library each load a libsycl of their own: segmentation faults, `RuntimeError: UR error`.",
    "https://github.com/pytorch/pytorch/issues/180948",
)
def two_runtimes(machine: Machine) -> Finding:
    if xpu_build(machine) is None:
        return skipped("torch is not an XPU build")
    answer = torch_child(machine)
    if answer["stage"] != "done":
        raise CouldNotLook("torch could not be imported in a child, see torch.imports")
    for name in ("libsycl", "libccl", "libur_loader", "libze_intel_gpu"):
        copies = sorted(
            path
            for path in {os.path.realpath(path) for path in answer["libraries"]}
            if re.match(rf"{name}\.so", os.path.basename(path))
        )
        if len(copies) > 1:
            return error(", ".join(copies), SHELL + "env -u LD_LIBRARY_PATH <your command>")
    return ok(", ".join(sorted({os.path.basename(path) for path in answer["libraries"]})) or "none is loaded")


@check(
    "driver.oneccl_root",
    "oneCCL's own variables point at the oneCCL that torch uses",
    "CCL_ROOT of another oneCCL makes it load that one's kernels and plugins: hangs and `unexpected` "
    "errors at the first "
    "collective.",
    "https://github.com/uxlfoundation/oneCCL/issues/212",
)
def oneccl_root(machine: Machine) -> Finding:
    wheel = machine.installed("oneccl")
    if wheel is None:
        return skipped("oneCCL is not installed as a wheel")
    root = machine.environ.get("CCL_ROOT")
    if not root:
        return ok(f"CCL_ROOT is not set; the wheel is oneccl {wheel}")
    package = machine.packages["oneccl"].metadata
    prefix = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(package))))
    if os.path.realpath(machine.path(root)).startswith(os.path.realpath(prefix)):
        return ok(f"CCL_ROOT={root}")
    return warning(f"CCL_ROOT={root}, but torch uses the wheel oneccl {wheel}", "unset CCL_ROOT CCL_CONFIGURATION")
