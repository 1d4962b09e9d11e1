"""verl: its release, its platform, its plugins, and packages its trainers import."""

from __future__ import annotations

from xpu_shim.core.versions import within
from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import number, xpu_build
from xpu_shim.doctor.machine import Machine

SUPPORTED = ("0.7.1", "0.10")


@check(
    "verl.version",
    "verl is a release the patches know",
    "Outside the range patches stay off, and the machine is CUDA or CPU to verl: `Unknown device: cpu for model_type: "
    "language_model`, `KeyError: 'NPU'`.",
    "https://github.com/verl-project/verl/pull/7371",
)
def version(machine: Machine) -> Finding:
    found = machine.installed("verl")
    if found is None:
        return skipped("verl is not installed")
    if within(found, SUPPORTED):
        return ok(found)
    return warning(
        f"verl {found}; known are {SUPPORTED[0]} to below {SUPPORTED[1]}", "pip install --no-deps verl==0.9.1"
    )


@check(
    "verl.platform",
    "VERL_PLATFORM leaves verl on Intel",
    "With another platform verl computes on `cuda`: `AssertionError: Torch not compiled with CUDA enabled`.",
    "https://github.com/verl-project/verl/issues/6403",
)
def platform(machine: Machine) -> Finding:
    value = machine.environ.get("VERL_PLATFORM", "").strip().lower()
    if value in ("", "intel"):
        return ok(f"VERL_PLATFORM={value}" if value else "not set")
    if not machine.cards and xpu_build(machine) is None:
        return skipped(f"VERL_PLATFORM={value}, and nothing here is Intel")
    return error(f"VERL_PLATFORM={machine.environ['VERL_PLATFORM']}", "unset VERL_PLATFORM")


@check(
    "verl.plugins",
    "verl's plugin list does not shut the shim's safety net out",
    "Where the start-up files do not run (`python -S`, a clobbered sitecustomize), verl's plugin entry "
    "point starts the shim.",
    "https://github.com/verl-project/verl-hardware-plugin",
)
def plugins(machine: Machine) -> Finding:
    value = machine.environ.get("VERL_USE_EXTERNAL_PLUGINS", "").strip()
    names = {name.strip() for name in value.split(",")}
    if value in ("", "auto") or "xpu_shim" in names:
        return ok(f"VERL_USE_EXTERNAL_PLUGINS={value}" if value else "not set")
    keep = "" if value == "none" else f"{value},"
    return warning(f"VERL_USE_EXTERNAL_PLUGINS={value}", f"export VERL_USE_EXTERNAL_PLUGINS={keep}xpu_shim")


@check(
    "verl.transfer_queue",
    "TransferQueue is installed for verl's default trainer",
    "`ModuleNotFoundError: No module named 'transfer_queue'` at the start of main_ppo: from 0.9.1 on its "
    "default trainer "
    "needs it, and only the extra verl-core brings it.",
    "https://github.com/verl-project/verl",
)
def transfer_queue(machine: Machine) -> Finding:
    found = machine.installed("verl")
    if found is None or number(found) < (0, 9, 1):
        return skipped("only verl from 0.9.1 on")
    have = machine.installed("transferqueue")
    if have is not None:
        return ok(f"TransferQueue {have}")
    return warning(
        "not installed", "pip install 'TransferQueue>=0.1.10'   # or trainer.use_v1=False on the command line"
    )


@check(
    "verl.flash_attn",
    "no CUDA build of flash_attn",
    "flash_attn is compiled for CUDA; on xpu its import or its first call fails (`libcudart.so.12: cannot open shared "
    "object file`). Without it the shim's patches give verl what it takes from it.",
    "https://github.com/verl-project/verl/pull/7033",
)
def flash_attn(machine: Machine) -> Finding:
    found = machine.installed("flash-attn")
    if found is None:
        return ok("not installed")
    if not machine.cards and xpu_build(machine) is None:
        return skipped("nothing here is Intel")
    return warning(f"flash_attn {found}", "pip uninstall -y flash-attn")


@check(
    "verl.attention_kernels",
    "flash attention is available as a hub kernel, or not asked for",
    "attn_implementation=flash_attention_2 works on XPU only through the package `kernels` and a kernel from the hub; "
    "offline or without it: `FlashAttention2 has been toggled on, but it cannot be used`. With sdpa and a "
    "padded batch the "
    "math backend takes 7 times the memory.",
    "https://github.com/huggingface/transformers/pull/41956",
)
def attention_kernels(machine: Machine) -> Finding:
    if xpu_build(machine) is None or machine.installed("transformers") is None:
        return skipped("only an XPU build of torch with transformers")
    have = machine.installed("kernels")
    sdpa = "+actor_rollout_ref.model.override_config.attn_implementation=sdpa"
    reason = "" if have else "the package kernels is not installed"
    offline = machine.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "on", "yes")
    if have and offline:
        home = machine.environ.get("HF_HOME") or f"{machine.environ.get('HOME', '/root')}/.cache/huggingface"
        if not any("kernels-community" in name for name in machine.listdir(f"{home}/hub") or ()):
            reason = f"HF_HUB_OFFLINE is set and {home}/hub has no kernels-community kernel"
    if not reason:
        return ok(f"kernels {have}")
    off = machine.environ.get("XPU_SHIM") == "0" or "verl.attention_default" in machine.environ.get(
        "XPU_SHIM_DISABLE", ""
    )
    if not off:
        return ok(f"{reason}; the patch verl.attention_default makes sdpa the default")
    return warning(
        f"{reason}, and the patch verl.attention_default is off",
        f"{sdpa}   # on the command line; or: pip install kernels",
    )


@check(
    "verl.nvtx",
    "no nvtx package that hides the profiler's own markers",
    "verl's extra verl-core installs nvtx; where it is importable verl takes NVTX ranges, which no Intel "
    "profiler shows.",
    "https://github.com/verl-project/verl/pull/7917",
)
def nvtx(machine: Machine) -> Finding:
    if machine.installed("verl") is None or not (machine.cards or xpu_build(machine)):
        return skipped("only verl on an Intel machine")
    found = machine.installed("nvtx")
    if found is None or "INTEL_LIBITTNOTIFY64" not in machine.environ:
        return ok(f"nvtx {found}, and no Intel profiler is attached" if found else "not installed")
    return warning(f"nvtx {found}, and a collector is attached (INTEL_LIBITTNOTIFY64)", "pip uninstall -y nvtx")
