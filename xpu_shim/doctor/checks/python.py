"""Does the shim's hook run in a fresh interpreter, and in the right one?"""

from __future__ import annotations

import csv
import difflib
import json
import os
import re

from xpu_shim.devices.settings import MASK_ONE, PIN
from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import ended, last_lines
from xpu_shim.doctor.machine import CouldNotLook, Machine
from xpu_shim.weights.settings import BACKENDS, PINNED

#: What the settings may be: a pattern for the value, and the allowed values in words. None: any value.
SETTINGS: dict[str, tuple[str, str] | None] = {
    "XPU_SHIM": (r"0|1|auto|", "0, 1 and auto"),
    "XPU_SHIM_LOG": (r"(?i)warning|info|debug|", "info and debug"),
    "XPU_SHIM_STRICT": (r"0|1|", "0 and 1"),
    "XPU_SHIM_VISIBILITY": (rf"{PIN}|{MASK_ONE}|", f"{PIN} and {MASK_ONE}"),
    "XPU_SHIM_ALLOW_SHARED_DEVICE": (r"0|1|", "0 and 1"),
    "XPU_SHIM_REDUCE_AVG": (r"(?i)sum|native|", "sum and native"),
    "XPU_SHIM_MARKERS": (r"(?i)auto|0|1|", "auto, 0 and 1"),
    "XPU_SHIM_WEIGHT_SYNC_TIMEOUT": (r"[\d.]*", "seconds from 0.1 to 86400"),
    "XPU_SHIM_WEIGHT_SYNC_SHM_MB": (r"[\d.]*", "MiB from 1 to 4096"),
    "XPU_SHIM_WEIGHT_SYNC_BACKEND": (rf"(?i){'|'.join(BACKENDS)}|", ", ".join(BACKENDS)),
    "XPU_SHIM_WEIGHT_SYNC_VERIFY": (r"[01]|", "0, 1"),
    "XPU_SHIM_WEIGHT_SYNC_PINNED": (rf"(?i){'|'.join(PINNED)}|", ", ".join(PINNED)),
    "XPU_SHIM_PROCESS": (r"rollout|driver|worker|", "rollout"),
    "XPU_SHIM_ARMED": (r"0|1|", "1 (set by the shim for its children)"),
    "XPU_SHIM_DISABLE": None,
    "XPU_SHIM_ONLY": None,
    "XPU_SHIM_REPORT_DIR": None,
    "XPU_SHIM_SYSFS": None,
}

#: Prints whether a fresh interpreter has the hook, and who else runs at start.
PROBE = """
import json, sys
hook = [type(finder).__module__ for finder in sys.meta_path]
where = getattr(sys.modules.get("xpu_shim"), "__file__", None)
print(json.dumps({"hook": any(name in ("xpu_shim._boot", "xpu_shim._finder") for name in hook), "package": where,
                  "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None)}))
"""


@check(
    "python.version",
    "Python is a release the shim supports",
    "Other releases are not tested; verl, vLLM and torch's XPU wheels have none for most of them.",
    "https://devguide.python.org/versions/",
)
def version(machine: Machine) -> Finding:
    text = ".".join(map(str, machine.version))
    if (3, 10) <= machine.version[:2] < (3, 14):
        return ok(text)
    return error(f"Python {text}; supported are 3.10 to 3.13", "python3.11 -m venv ~/verl && . ~/verl/bin/activate")


@check(
    "python.hook",
    "a fresh interpreter has the shim's hook",
    "Without the hook nothing is patched, and nobody says so: verl takes the machine for NVIDIA's or for a CPU.",
    "https://docs.python.org/3/library/site.html",
)
def hook(machine: Machine) -> Finding:
    if machine.environ.get("XPU_SHIM") == "0":
        return warning("switched off by XPU_SHIM=0", "unset XPU_SHIM")
    # From another directory: the one the user stands in may be the project's, which is found first only there.
    ran = machine.run([machine.python, "-c", f"import os; os.chdir(os.sep)\n{PROBE}"], 20)
    if ran.status != 0 or not ran.out.strip():
        raise CouldNotLook(f"a fresh {machine.python}: {ended(ran.status, 20)}: {last_lines(ran.err)}")
    answer = json.loads(ran.out.strip().splitlines()[-1])
    if answer["hook"]:
        return ok(f"{machine.python} has it, from {os.path.dirname(answer['package'] or '') or 'an armed parent'}")
    return error(
        f"{machine.python} has not (sitecustomize that ran: {answer['sitecustomize'] or 'none'})",
        f"{machine.python} -m pip install --force-reinstall --no-deps xpu-shim   # not with -S, not on "
        f"PYTHONPATH alone",
    )


@check(
    "python.sitecustomize",
    "only one installed package ships sitecustomize.py",
    "Wheels with a top-level sitecustomize.py overwrite each other silently, and removing one removes the "
    "file of both. "
    "The shim also starts from xpu_shim.pth, which is not affected.",
    "https://github.com/conda-forge/python-feedstock/issues/730",
)
def sitecustomize(machine: Machine) -> Finding:
    claims = []
    for name, package in machine.packages.items():
        record = os.path.join(package.metadata, "RECORD")
        try:
            with open(record, encoding="utf-8", errors="replace", newline="") as file:
                if any(row and row[0] == "sitecustomize.py" for row in csv.reader(file)):
                    claims.append(f"{name} {package.version}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as problem:
            raise CouldNotLook(f"{record}: {problem.strerror}") from problem
    if len(claims) < 2:
        return ok(", ".join(claims) or "none does")
    others = [claim.split()[0] for claim in claims if not claim.startswith("xpu-shim ")]
    return warning(
        ", ".join(claims), f"pip uninstall -y {others[0]} && pip install --force-reinstall --no-deps xpu-shim"
    )


@check(
    "python.settings",
    "every XPU_SHIM_ variable is one the shim knows, with an allowed value",
    "A misspelled setting has no effect, and the run is not what it seems.",
    "https://docs.python.org/3/using/cmdline.html#environment-variables",
)
def settings(machine: Machine) -> Finding:
    from xpu_shim._targets import PATCHES

    wrong = []
    names = [name for name in sorted(machine.environ) if name.startswith("XPU_SHIM")]
    for name in names:
        value = machine.environ[name]
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=1)
            wrong.append(f"{name} is not known" + (f" (did you mean {near[0]}?)" if near else ""))
        elif name in ("XPU_SHIM_DISABLE", "XPU_SHIM_ONLY"):
            unknown = {part.strip() for part in value.split(",") if part.strip()}.difference(PATCHES)
            wrong += [f"{name} names {part!r}, which is no patch" for part in sorted(unknown)]
        else:
            allowed = SETTINGS[name]
            if allowed is not None and not re.fullmatch(allowed[0], value):
                wrong.append(f"{name}={value!r}; allowed are {allowed[1]}")
    if not wrong:
        return ok(", ".join(f"{name}={machine.environ[name]}" for name in names) or "none is set")
    return warning(
        "; ".join(wrong), "unset " + " ".join(dict.fromkeys(text.partition("=")[0].split()[0] for text in wrong))
    )


@check(
    "python.launcher",
    "the programs on PATH belong to this interpreter",
    "`torchrun`, `ray` and `vllm` of another environment start an interpreter without the shim, or "
    "without torch for XPU.",
    "https://docs.python.org/3/library/venv.html",
)
def launcher(machine: Machine) -> Finding:
    own = os.path.dirname(os.path.abspath(machine.python))
    found = {name: path for name in ("torchrun", "ray", "vllm") if (path := machine.which(name))}
    if not found:
        return skipped("none of torchrun, ray and vllm is on PATH")
    foreign = {
        name: path
        for name, path in found.items()
        if os.path.dirname(machine.path(path)) != own and os.path.exists(machine.path(os.path.join(own, name)))
    }
    if not foreign:
        return ok(", ".join(found.values()))
    listed = ", ".join(foreign.values())
    return warning(f"{listed} come before those of {own}", f"export PATH={own}:$PATH")
