"""Variables that decide what a process sees, which path a collective takes, and what the allocator does."""

from __future__ import annotations

from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import visible
from xpu_shim.doctor.machine import Machine
from xpu_shim.intel.environment import RULES, Facts
from xpu_shim.intel.visibility import (
    HIERARCHY,
    MASK,
    SELECTOR,
    Card,
    VisibilityError,
    all_devices,
    merge_selector,
    parse_hierarchy,
    parse_mask,
)


def _cards(machine: Machine) -> list[Card]:
    return [Card(gpu.tiles, gpu.discrete) for gpu in machine.gpus]


@check(
    "environment.selector",
    "ONEAPI_DEVICE_SELECTOR is not set",
    "It takes oneDNN's OpenCL device away (`could not create a primitive`), breaks Triton (`0 active "
    "drivers ([])`), and "
    "bare ids such as 0,1 make `import torch` crash. The shim removes it in the processes it acts in.",
    "https://github.com/ray-project/ray/pull/64440",
)
def selector(machine: Machine) -> Finding:
    value = machine.environ.get(SELECTOR)
    if value is None:
        return ok("not set")
    hierarchy = parse_hierarchy(machine.environ.get(HIERARCHY))
    try:
        mask = merge_selector(machine.environ.get(MASK), value, _cards(machine), hierarchy)
    except VisibilityError as problem:
        return error(str(problem), f"unset {SELECTOR}")
    keep = f"; export {MASK}={mask}" if mask is not None else ""
    return warning(f"{SELECTOR}={value}", f"unset {SELECTOR}{keep}   # look in ~/.bashrc and conda's activate.d")


@check(
    "environment.mask",
    "ZE_AFFINITY_MASK is well-formed and leaves devices that exist",
    "Level Zero skips entries it does not know without a word: zero devices, or fewer than ranks.",
    "https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#affinity-mask",
)
def mask(machine: Machine) -> Finding:
    value = machine.environ.get(MASK)
    try:
        hierarchy = parse_hierarchy(machine.environ.get(HIERARCHY))
        entries = parse_mask(value, hierarchy)
    except VisibilityError as problem:
        return error(str(problem), f"unset {MASK}" if MASK in str(problem) else f"unset {HIERARCHY}")
    if entries is None:
        return ok(f"{MASK} is not set" if value is None else f"{MASK}={value!r} restricts nothing")
    if not machine.gpus:
        return skipped(f"{MASK}={value}, and no Intel GPU to hold against it")
    devices = all_devices(_cards(machine), hierarchy)
    known = {device.ordinal for device in devices}
    beyond = sorted({ordinal for ordinal, _ in entries} - known)
    names = ",".join(str(ordinal) for ordinal in sorted(known))
    if not visible(machine):
        return error(f"{MASK}={value} leaves no device; there are {names}", f"export {MASK}={names}")
    if beyond:
        return warning(
            f"{MASK}={value} names {', '.join(map(str, beyond))}, which do not exist; there are {names}",
            f"export {MASK}=" + ",".join(str(ordinal) for ordinal, _ in entries if ordinal in known),
        )
    return ok(f"{MASK}={value}: {len(visible(machine))} of {len(devices)} devices")


@check(
    "environment.hierarchy",
    "ZE_FLAT_DEVICE_HIERARCHY is a word Level Zero knows",
    "Any other is ignored: masks and indices then mean tiles where cards were meant.",
    "https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#environment-variables",
)
def hierarchy(machine: Machine) -> Finding:
    try:
        value = parse_hierarchy(machine.environ.get(HIERARCHY))
    except VisibilityError as problem:
        return error(str(problem), f"unset {HIERARCHY}")
    return ok(value)


@check(
    "environment.ranks",
    "as many ranks a node as visible devices",
    "More ranks than devices: two share one (`oversubscription case is detected`, `XPU out of memory`). "
    "Fewer: cards idle; "
    "one process never uses more than one.",
    "https://github.com/huggingface/transformers/issues/34881",
)
def ranks(machine: Machine) -> Finding:
    text = machine.environ.get("LOCAL_WORLD_SIZE", "")
    if not text.isdigit() or not machine.gpus:
        return skipped("LOCAL_WORLD_SIZE is not set: this is not a rank of torchrun")
    count = len(visible(machine))
    if int(text) == count:
        return ok(f"{text} ranks, {count} devices")
    fix = f"torchrun --nproc_per_node={count} ...   # for verl's Ray trainers: trainer.n_gpus_per_node={count}"
    if int(text) > count:
        return error(f"{text} ranks, {count} visible devices ({MASK}={machine.environ.get(MASK, '(not set)')})", fix)
    return warning(f"{text} ranks, {count} visible devices", fix)


@check(
    "environment.one_card_masks",
    "ranks of one group do not see one card each",
    "oneCCL needs the devices of a communicator visible in every process: `comm_dev_uuids is not sub-vector of "
    "node_dev_uuids`, then `zeMemOpenIpcHandle ... ZE_RESULT_ERROR_INVALID_ARGUMENT` or a hang at the "
    "first collective.",
    "https://github.com/uxlfoundation/oneCCL/issues/217",
)
def one_card_masks(machine: Machine) -> Finding:
    if len(machine.gpus) < 2:
        return skipped("fewer than two Intel GPUs")
    if machine.environ.get("XPU_SHIM_VISIBILITY") == "mask":
        return warning(
            "XPU_SHIM_VISIBILITY=mask gives every Ray worker one card",
            "unset XPU_SHIM_VISIBILITY   # the default pins each rank and leaves all cards visible",
        )
    local = machine.environ.get("LOCAL_WORLD_SIZE", "1")
    if local.isdigit() and int(local) > 1 and len(visible(machine)) == 1:
        return warning(
            f"{local} ranks on this node, and {MASK}={machine.environ.get(MASK)} leaves one device to this one",
            f"unset {MASK}   # the shim selects each rank's device; or list all cards of the job in it",
        )
    return ok("no one-card mask per rank")


@check(
    "environment.expandable_segments",
    "expandable segments are off",
    "On XPU they lose the device in the first large all_reduce (`UR_RESULT_ERROR_DEVICE_LOST`) or hang the first FSDP2 "
    "step. PYTORCH_CUDA_ALLOC_CONF reaches XPU too.",
    "https://github.com/intel/torch-xpu-ops/issues/4427",
)
def expandable_segments(machine: Machine) -> Finding:
    facts = Facts(machine.environ, (), ())
    names = [rule.name for rule in RULES if rule.name.startswith("PYTORCH_") and rule.applies(facts)]
    if not names:
        return ok("not asked for")
    return error(", ".join(f"{name}={machine.environ[name]}" for name in names), f"unset {' '.join(names)}")


#: Variables that send collectives to oneCCL's scheduler path, and the values that do not.
SCHEDULER_PATH = {
    "CCL_TOPO_ALGO": ("1",),
    "CCL_ZE_CACHE": ("1",),
    "CCL_ENABLE_SYCL_KERNELS": ("1",),
    "CCL_TOPO_P2P_ACCESS": ("1",),
    "CCL_ALLREDUCE": ("topo",),
    "CCL_REDUCE_SCATTER": ("topo",),
}


@check(
    "environment.scheduler_path",
    "nothing sends collectives to oneCCL's scheduler path",
    "There averages abort: `average operation is not supported for the scheduler path`. With the shim "
    "they are sums and "
    "divisions, so this is slow, not fatal. CCL_ZE_CACHE=0 costs about 39 %.",
    "https://github.com/intel/torch-xpu-ops/issues/2361",
)
def scheduler_path(machine: Machine) -> Finding:
    forcing = [
        f"{name}={machine.environ[name]}"
        for name, harmless in SCHEDULER_PATH.items()
        if machine.environ.get(name) and machine.environ[name] not in harmless
    ]
    if not forcing:
        return ok("no variable does")
    fix = "unset " + " ".join(text.partition("=")[0] for text in forcing) + "   # keep one only where it cures a hang"
    if machine.environ.get("XPU_SHIM") == "0" or machine.environ.get("XPU_SHIM_REDUCE_AVG") == "native":
        return error(", ".join(forcing) + ", and the shim's patches on averages are off", fix)
    return warning(", ".join(forcing), fix)


@check(
    "environment.old_workarounds",
    "no workarounds for stacks before oneAPI 2026",
    "Recipes of early 2026 set them against hangs that driver 26.18 and torch 2.13 no longer have; they serialise the "
    "card or switch off caches, and are slow.",
    "https://github.com/verl-project/verl/pull/7371",
)
def old_workarounds(machine: Machine) -> Finding:
    known = {
        "ZE_SERIALIZE_MODE": None,
        "ZE_SERIALIZE": None,
        "SYCL_LAUNCH_BLOCKING": "1",
        "CCL_BUFFER_CACHE": "0",
        "CCL_TOPO_FABRIC_VERTEX_CONNECTION_CHECK": "0",
    }
    found = [
        name
        for name, value in known.items()
        if machine.environ.get(name) not in (None, "", "0" if value is None else "")
        and (value is None or machine.environ[name] == value)
    ]
    if not found:
        return ok("none is set")
    return warning(", ".join(f"{name}={machine.environ[name]}" for name in found), f"unset {' '.join(found)}")


@check(
    "environment.launcher",
    "oneCCL is told who launches the ranks, or not at all",
    "`could not get local_idx/count from environment variables`, or `did not find MPI-launcher specific "
    "variables, switch "
    "to ATL/OFI` and every rank believes itself alone.",
    "https://github.com/huggingface/accelerate/issues/2340",
)
def launcher(machine: Machine) -> Finding:
    environ = machine.environ
    under_mpi = any(name in environ for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID"))
    value = environ.get("CCL_PROCESS_LAUNCHER")
    if value == "none":
        missing = [name for name in ("CCL_LOCAL_RANK", "CCL_LOCAL_SIZE") if name not in environ]
        if missing and "LOCAL_RANK" in environ:
            return error(
                f"CCL_PROCESS_LAUNCHER=none without {' and '.join(missing)}",
                "export CCL_LOCAL_RANK=$LOCAL_RANK CCL_LOCAL_SIZE=$LOCAL_WORLD_SIZE   # in each rank; or "
                "unset CCL_PROCESS_LAUNCHER",
            )
    elif value in ("hydra", "pmix", "torchrun") and value != "torchrun" and not under_mpi:
        return error(f"CCL_PROCESS_LAUNCHER={value}, and no MPI started this process", "unset CCL_PROCESS_LAUNCHER")
    if environ.get("CCL_ATL_TRANSPORT") == "mpi" and not under_mpi:
        return warning(
            "CCL_ATL_TRANSPORT=mpi, and no MPI started this process: oneCCL may change to ofi by itself",
            "unset CCL_ATL_TRANSPORT   # or start the ranks with mpirun",
        )
    return ok(f"CCL_PROCESS_LAUNCHER={value}" if value else "CCL_PROCESS_LAUNCHER is not set")


@check(
    "environment.recommended",
    "what the environment policy asks for can be worked out",
    "`xpu-shim env` shows every variable the shim sets, removes or recommends here, and why.",
    "https://github.com/vllm-project/vllm/issues/50269",
)
def recommended(machine: Machine) -> Finding:
    from xpu_shim.doctor.policy import planned

    try:
        changes = planned(machine)
    except VisibilityError as problem:
        return error(f"the policy cannot be applied: {problem}", f"unset {SELECTOR} {HIERARCHY}; unset {MASK}")
    words = [
        f"{change.rule.action} {change.name}"
        + (f"={change.value}" if change.value and change.value != change.name else "")
        for change in changes
    ]
    return ok("; ".join(words) or "nothing to set, remove or recommend")
