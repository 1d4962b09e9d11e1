"""Half-open version ranges, read from modules that were just imported. Standard library only."""

from __future__ import annotations

import os
import re
import sys


class UnknownVersionError(LookupError):
    """No version of an imported package could be read; the message names the places that were looked at."""


def release(version: str) -> tuple[int, ...]:
    """The release numbers of a version: "2.13.0+xpu" and "2.13.0.dev20261001" are both (2, 13, 0).

    Development and pre-release versions count as the release they lead to: XPU builds are often nightlies, and a patch
    for 2.13 belongs on them.

    Raises:
        ValueError: if the text does not begin with a number.
    """
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", version)
    if match is None:
        raise ValueError(f"version {version!r} does not begin with a number")
    return tuple(int(part) for part in match[1].split("."))


def within(version: str, bounds: tuple[str, str]) -> bool:
    """Whether `bounds[0] <= version < bounds[1]`, comparing release numbers only."""
    low, value, high = release(bounds[0]), release(version), release(bounds[1])
    size = max(len(low), len(value), len(high))
    low, value, high = (numbers + (0,) * (size - len(numbers)) for numbers in (low, value, high))
    return low <= value < high


def of_imported(package: str) -> str:
    """The version of an imported top-level package, even while its `__init__` still runs.

    `__version__` of the module counts first: it belongs to the code that was imported, where installed metadata may be
    another copy's. verl sets its own only after it imported most of itself, so the file it reads is read here too.

    Raises:
        UnknownVersionError: if none of the places answers.
    """
    module = sys.modules.get(package)
    if module is None:
        raise UnknownVersionError(f"{package} is not imported")
    for holder in (module, sys.modules.get(f"{package}.version"), sys.modules.get(f"{package}._version")):
        value = getattr(holder, "__version__", None)
        if isinstance(value, str) and value[:1].isdigit():
            return value
    for folder in getattr(module, "__path__", ()):
        path = os.path.join(folder, "version", "version")
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                return file.read().strip()
    try:
        # Slow (about 60 ms), and reached only by packages that neither name nor file their version.
        from importlib.metadata import version

        return version(package)
    except Exception as error:
        raise UnknownVersionError(
            f"{package} has no __version__, no version file and no installed metadata ({error})"
        ) from error
