"""Is torch an XPU build, does it import, does it see the cards, and is its oneCCL a good one?"""

from __future__ import annotations

import os
import re

from xpu_shim.core.versions import within
from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import (
    DATA_CENTER_MAX,
    battlemage,
    describe,
    ended,
    number,
    torch_build,
    torch_child,
    visible,
    xpu_build,
)
from xpu_shim.doctor.machine import CouldNotLook, Machine

#: torch releases the patches are written for, half-open.
SUPPORTED = ("2.11", "2.16")

XPU_WHEEL = "https://docs.pytorch.org/docs/stable/notes/get_start_xpu.html"
REINSTALL = f"pip install --force-reinstall torch --index-url <the XPU index named on {XPU_WHEEL}>"


@check(
    "torch.build",
    "torch is an XPU build",
    "A CUDA, ROCm or CPU wheel on an Intel machine: `RuntimeError: PyTorch was compiled without CUDA support`, "
    "`AssertionError: Torch not compiled with XPU enabled`.",
    XPU_WHEEL,
)
def build(machine: Machine) -> Finding:
    found = torch_build(machine)
    if found is None:
        return warning("torch is not installed for this interpreter", REINSTALL)
    if found.xpu:
        return ok(f"torch {found.version}, oneAPI {found.xpu}")
    kind = "CUDA" if found.cuda else "ROCm" if found.hip else "CPU"
    if not machine.cards:
        return skipped(f"no discrete Intel GPU; torch {found.version} is a {kind} build")
    return error(f"torch {found.version} is a {kind} build, and {describe(machine.cards[0])} is here", REINSTALL)


@check(
    "torch.version",
    "torch is a release the patches know",
    "Outside the range patches stay off (`skipped` in `xpu-shim run`), and what they cure comes back; "
    "before 2.11 FSDP1 "
    "offload fails with `AssertionError` on data_ptr(), and torch.xpu lacks functions.",
    "https://github.com/pytorch/pytorch/pull/135567",
)
def version(machine: Machine) -> Finding:
    found = torch_build(machine)
    if found is None:
        return skipped("torch is not installed")
    if within(found.version, SUPPORTED):
        return ok(found.version)
    return warning(
        f"torch {found.version}; known are {SUPPORTED[0]} to below {SUPPORTED[1]}",
        f"{REINSTALL}   # with torch=={SUPPORTED[0]} or later, below {SUPPORTED[1]}",
    )


@check(
    "torch.imports",
    "`import torch` works and counting devices ends",
    "A broken driver or a mixed oneAPI makes it crash or hang for every program; here it is tried in a child.",
    "https://github.com/pytorch/pytorch/issues/149953",
)
def imports(machine: Machine) -> Finding:
    from xpu_shim.doctor.signatures import find

    if xpu_build(machine) is None:
        return skipped("torch is not an XPU build; `--probe` imports it all the same")
    answer = torch_child(machine)
    if answer["stage"] == "done":
        return ok(f"torch {answer['version']} in a child")
    what = {"start": "starting Python", "import": "import torch", "count": "torch.xpu.device_count()"}[answer["stage"]]
    known = find(answer["problem"])
    text = f"{what}: {ended(answer['status'], machine.limit)}" + (f": {answer['problem']}" if answer["problem"] else "")
    if known:
        return error(f"{text} [{known[0].id}: {known[0].cause}]", known[0].cure)
    return error(
        text, f"timeout 60 {machine.python} -X faulthandler -c 'import torch; print(torch.xpu.device_count())'"
    )


@check(
    "torch.device_count",
    "torch sees every card the mask leaves",
    "sysfs shows the cards and torch.xpu.device_count() is 0: Level Zero or SYCL of another release is found first, or "
    "the directory of the wheels' libraries is missing in LD_LIBRARY_PATH.",
    "https://github.com/vllm-project/vllm/pull/48634",
)
def device_count(machine: Machine) -> Finding:
    if xpu_build(machine) is None:
        return skipped("torch is not an XPU build")
    answer = torch_child(machine)
    if answer["stage"] != "done":
        raise CouldNotLook("torch could not be imported in a child, see torch.imports")
    if not machine.gpus:
        return skipped("sysfs shows no Intel GPU")
    expected, seen = len(visible(machine)), answer["count"]
    if seen == expected:
        return ok(f"{seen}, as sysfs and the mask say")
    prefix = os.path.dirname(os.path.dirname(machine.python))
    if seen == 0:
        return error(
            f"torch counts 0, sysfs shows {expected}",
            f"export LD_LIBRARY_PATH={prefix}/lib   # then: sycl-ls; and see hardware.permissions, "
            f"driver.level_zero_driver",
        )
    return warning(
        f"torch counts {seen}, sysfs and the mask say {expected}",
        "sycl-ls   # a card that is missing there is a driver's or the kernel's matter: sudo dmesg | grep -E 'xe|i915'",
    )


@check(
    "torch.xccl",
    "torch was built with the xccl backend",
    "`RuntimeError: No backend type associated with device type xpu`, `c10d::allgather_ not implemented for XPU`.",
    "https://github.com/pytorch/pytorch/issues/142096",
)
def xccl(machine: Machine) -> Finding:
    if xpu_build(machine) is None:
        return skipped("torch is not an XPU build")
    answer = torch_child(machine)
    if answer["stage"] != "done":
        raise CouldNotLook("torch could not be imported in a child, see torch.imports")
    if answer["xccl"]:
        return ok("torch.distributed.is_xccl_available() is True")
    return error("torch.distributed.is_xccl_available() is not True", f"{REINSTALL}   # wheels have it from 2.8 on")


@check(
    "torch.runtime_versions",
    "the oneAPI wheels are the ones torch was built with",
    "Another oneCCL, SYCL or Triton than torch pins: `undefined symbol`, `version LIBUR_LOADER_0.10 not found`, hangs.",
    "https://github.com/uxlfoundation/oneCCL/issues/215",
)
def runtime_versions(machine: Machine) -> Finding:
    from packaging.requirements import InvalidRequirement, Requirement

    package = machine.packages.get("torch")
    if package is None or xpu_build(machine) is None:
        return skipped("torch is not an XPU build")
    try:
        with open(os.path.join(package.metadata, "METADATA"), encoding="utf-8", errors="replace") as file:
            lines = file.read().partition("\n\n")[0].splitlines()
    except OSError as problem:
        raise CouldNotLook(f"torch's METADATA: {problem.strerror}") from problem
    wrong, pinned = [], 0
    for line in lines:
        if not line.startswith("Requires-Dist:"):
            continue
        try:
            wanted = Requirement(line.partition(":")[2].strip())
        except InvalidRequirement:
            continue
        if not re.match(r"(intel|one|onemkl|mkl|triton|pytorch-triton|impi|tcmlib|umf|tbb|dpcpp)", wanted.name):
            continue
        if "==" not in str(wanted.specifier) or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        pinned += 1
        found = machine.installed(wanted.name.lower().replace("_", "-"))
        if found is None or not wanted.specifier.contains(found, prereleases=True):
            wrong.append((f"{wanted.name}{wanted.specifier}", f"{wanted.name} {found or 'missing'}"))
    if wrong:
        return warning(
            ", ".join(f"{have} (torch wants {want.removeprefix(have.split()[0])})" for want, have in wrong),
            "pip install " + " ".join(f"'{want}'" for want, _ in wrong),
        )
    if not pinned:
        return skipped("torch pins no oneAPI wheels here (a conda or source build)")
    return ok(f"{pinned} of {pinned} pinned wheels fit")


@check(
    "torch.oneccl_arc_b",
    "oneCCL is not a release that hangs on several Arc B cards",
    "Any all_reduce hangs, with GuC timeouts and `UR_RESULT_ERROR_DEVICE_LOST (20)`: oneCCL 2022.0 and "
    "2022.1 on Arc Pro "
    "B60. CCL_ALLREDUCE=ring works, about 30 % slower.",
    "https://github.com/uxlfoundation/oneCCL/issues/215",
)
def oneccl_arc_b(machine: Machine) -> Finding:
    cards = battlemage(machine)
    if len(cards) < 2:
        return skipped("fewer than two Arc B cards")
    found = machine.installed("oneccl")
    if found is None:
        return skipped("oneCCL is not installed as a wheel")
    if not (2022, 0) <= number(found)[:2] < (2022, 2):
        return ok(f"oneccl {found}")
    if machine.environ.get("CCL_ALLREDUCE") == "ring":
        return ok(f"oneccl {found} with CCL_ALLREDUCE=ring")
    return warning(
        f"oneccl {found} with {len(cards)} Arc B cards; `xpu-shim doctor --probe` tries a collective",
        "export CCL_ALLREDUCE=ring   # only if an all_reduce hangs: it is slower, and averages need the shim then",
    )


@check(
    "torch.ipc_handle_cache",
    "oneCCL's cache of IPC handles is off where it goes stale",
    "A GPU page fault and then an endless wait in ze_base_entry::is_event_completed once a peer's buffer "
    "is reallocated; "
    "`No available shared memory broadcast block` follows.",
    "https://github.com/uxlfoundation/oneCCL/issues/212",
)
def ipc_handle_cache(machine: Machine) -> Finding:
    found = torch_build(machine)
    if found is None or not found.xpu or number(found.version) >= (2, 13) or len(battlemage(machine)) < 2:
        return skipped("only torch before 2.13 with several Arc B cards")
    value = machine.environ.get("CCL_ZE_CACHE_OPEN_IPC_HANDLES")
    if value in (None, "0"):
        return ok("off" if value else "not set; the shim sets it to 0 in every training process")
    return warning(
        f"CCL_ZE_CACHE_OPEN_IPC_HANDLES={value} with torch {found.version}", "export CCL_ZE_CACHE_OPEN_IPC_HANDLES=0"
    )


@check(
    "torch.fsdp1_broadcast",
    "FSDP1's first broadcast does not hang",
    "FSDP with sync_module_states=True hangs without an error at its first broadcast (7B hangs, 0.5B does not) with "
    "torch 2.12 on two Arc B cards; fixed in torch 2.13.",
    "https://github.com/intel/torch-xpu-ops/issues/4238",
)
def fsdp1_broadcast(machine: Machine) -> Finding:
    found = torch_build(machine)
    if found is None or not found.xpu or len(machine.cards) < 2:
        return skipped("only an XPU build with several cards")
    if number(found.version) >= (2, 13):
        return ok(f"torch {found.version}")
    if machine.environ.get("CCL_ZE_IPC_EXCHANGE") == "sockets":
        return ok(f"torch {found.version} with CCL_ZE_IPC_EXCHANGE=sockets")
    return warning(
        f"torch {found.version} with {len(machine.cards)} cards",
        "export CCL_ZE_IPC_EXCHANGE=sockets CCL_ATL_TRANSPORT=mpi   # or strategy=fsdp2, or torch 2.13",
    )


@check(
    "torch.ipex",
    "no intel_extension_for_pytorch, and no oneccl_bindings_for_pytorch",
    "IPEX ended with 2.8; imported into another torch it breaks it (`undefined symbol`, `needs to work "
    "with PyTorch 2.8`).",
    "https://github.com/intel/intel-extension-for-pytorch/issues/867",
)
def ipex(machine: Machine) -> Finding:
    names = ("intel-extension-for-pytorch", "oneccl-bind-pt", "ipex-llm")
    found = [f"{name} {machine.packages[name].version}" for name in names if name in machine.packages]
    if not found:
        return ok("not installed")
    return warning(", ".join(found), f"pip uninstall -y {' '.join(name.split()[0] for name in found)}")


@check(
    "torch.triton",
    "Triton is the XPU build",
    "torch.compile, which verl uses for the entropy, and vLLM's kernels: `RuntimeError: 0 active drivers ([]). There "
    "should only be one.`",
    "https://github.com/intel/intel-xpu-backend-for-triton",
)
def triton(machine: Machine) -> Finding:
    if xpu_build(machine) is None:
        return skipped("torch is not an XPU build")
    xpu = next((name for name in ("triton-xpu", "pytorch-triton-xpu") if name in machine.packages), None)
    plain = machine.installed("triton")
    if plain is not None and "xpu" not in plain:
        return error(
            f"triton {plain} (for CUDA) is installed" + (f" over {xpu}" if xpu else ""),
            "pip uninstall -y triton && pip install --force-reinstall --no-deps "
            f"{f'{xpu}=={machine.packages[xpu].version}' if xpu else 'triton-xpu'} --index-url <the XPU "
            f"index of {XPU_WHEEL}>",
        )
    if xpu is None and plain is None:
        return warning("no Triton is installed", REINSTALL)
    return ok(f"{xpu} {machine.packages[xpu].version}" if xpu else f"triton {plain}")


@check(
    "torch.pyzes",
    "devices can be counted without starting Level Zero",
    "`torch.xpu.is_available()` starts Level Zero, and from then on ZE_AFFINITY_MASK is ignored: every "
    "rank on device 0. "
    "torch from 2.13 on asks pyzes instead where it is installed.",
    "https://github.com/intel/torch-xpu-ops/issues/2089",
)
def pyzes(machine: Machine) -> Finding:
    found = xpu_build(machine)
    if found is None or number(found.version) < (2, 13):
        return skipped("only XPU builds of torch from 2.13 on")
    have = machine.installed("pyzes")
    return ok(f"pyzes {have}") if have else warning("pyzes is not installed", "pip install pyzes")


@check(
    "torch.host_copies",
    "copies to host memory are complete when torch says so",
    "With torch up to 2.13 on Data Center GPU Max a non_blocking copy to host memory may still run when its event is "
    "waited for: offloaded parameters or optimizer state are stale or zero, without an error.",
    "https://github.com/pytorch/pytorch/pull/189980",
)
def host_copies(machine: Machine) -> Finding:
    found = xpu_build(machine)
    cards = [gpu for gpu in machine.cards if gpu.device_id in DATA_CENTER_MAX]
    if found is None or not cards:
        return skipped("only an XPU build with Data Center GPU Max cards")
    if number(found.version) >= (2, 14):
        return ok(f"torch {found.version}")
    return warning(
        f"torch {found.version} with {describe(cards[0])}",
        "export XPU_SHIM_WEIGHT_SYNC_PINNED=0; on the command line: "
        "actor_rollout_ref.actor.fsdp_config.param_offload=False "
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=False   # or torch 2.14",
    )
