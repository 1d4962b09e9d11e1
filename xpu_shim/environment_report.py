"""`xpu-shim status`: is the hook installed in this environment, by which start-up files, and who else is there?"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

import xpu_shim
from xpu_shim import activation, runtime

PTH = "xpu_shim.pth"


def collect() -> dict[str, Any]:
    """All that `status` shows, as plain data."""
    directories = _site_directories()
    owner = sys.modules.get("sitecustomize")
    pth = [str(path) for path in (Path(directory) / PTH for directory in directories) if path.is_file()]
    ours = str(Path(xpu_shim.__file__).parent.parent / "sitecustomize.py")
    running = getattr(owner, "__file__", None)
    described = runtime.describe()
    decision = activation.decide(torch_is_ready=False)
    return {
        "version": xpu_shim.__version__,
        "package": str(Path(xpu_shim.__file__).parent),
        "hook": {
            "installed": any(
                type(finder).__module__ in ("xpu_shim._boot", "xpu_shim._finder") for finder in sys.meta_path
            ),
            "switched_off": os.environ.get("XPU_SHIM") == "0",
            "armed": described["armed"],
            "errors": described["errors"],
        },
        "pth": pth,
        "sitecustomize": {
            "ran": running,
            "ours_found": ours if Path(ours).is_file() else None,
            "claimed_by": _claims("sitecustomize.py"),
        },
        "active": decision.active,
        "reason": decision.reason,
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith("XPU_SHIM")},
        "patches": described["patches"],
    }


def _site_directories() -> list[str]:
    directories = list(site.getsitepackages()) + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])
    return [directory for directory in dict.fromkeys(directories) if os.path.isdir(directory)]


def _claims(name: str) -> list[str]:
    """Distributions whose RECORD lists a top-level file of this name: more than one overwrote each other silently."""
    from importlib_metadata import distributions

    found = []
    for distribution in distributions():
        if any(str(path) == name for path in distribution.files or ()):
            found.append(f"{distribution.metadata['Name']} {distribution.version}")
    return sorted(set(found))


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report for a person."""
    hook = report["hook"]
    state = (
        "switched off by XPU_SHIM=0" if hook["switched_off"] else "installed" if hook["installed"] else "NOT installed"
    )
    console.print(f"xpu-shim {report['version']} ({report['package']})")
    console.print(
        f"hook: {state}" + (", armed" if hook["armed"] else ", waiting for verl" if hook["installed"] else "")
    )
    console.print("start-up files:")
    console.print(
        f"  {PTH}: " + (", ".join(report["pth"]) or "none in the site directories (it is not read from PYTHONPATH)")
    )
    ran = report["sitecustomize"]["ran"]
    console.print(f"  sitecustomize that ran: {ran or 'none'}")
    claims = report["sitecustomize"]["claimed_by"]
    if len(claims) > 1:
        console.print(
            f"  more than one distribution ships sitecustomize.py: {', '.join(claims)}; the .pth works all the same"
        )
    active = {True: "yes", False: "no", None: "not known before torch is imported"}[report["active"]]
    console.print(f"would act here: {active} ({report['reason']})")
    for name, value in report["settings"].items():
        console.print(f"  {name}={value}")
    for error in hook["errors"]:
        console.print(f"  hook error: {error}")
    console.print(f"{len(report['patches'])} patches wait for their targets; `xpu-shim list` shows them")
