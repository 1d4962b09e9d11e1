"""The checks, one file a check or a small family."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from xpu_shim.doctor.check import GROUPS, Check


@functools.lru_cache(maxsize=1)
def all_checks() -> tuple[Check, ...]:
    """Every check, in the order of the groups and, within one, of file and definition."""
    found: list[Check] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda item: item.name):
        namespace = vars(importlib.import_module(f"{__name__}.{module.name}"))
        found += [value for value in namespace.values() if isinstance(value, Check)]
    return tuple(sorted(found, key=lambda item: list(GROUPS).index(item.group)))
