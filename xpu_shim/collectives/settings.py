"""`XPU_SHIM_REDUCE_AVG`: who divides in an average."""

from __future__ import annotations

import os

from xpu_shim.core.log import warn_once

#: The variable's values: the shim divides, or AVG and PREMUL_SUM go to oneCCL as they are.
MODES = ("sum", "native")


def averages_by_sum() -> bool:
    """Whether averages become SUM and a division: true unless `XPU_SHIM_REDUCE_AVG=native`.

    Any other value than `sum`, `native` or nothing is warned about once and means `sum`.
    """
    value = os.environ.get("XPU_SHIM_REDUCE_AVG", "").strip().lower()
    if value and value not in MODES:
        warn_once(
            f"XPU_SHIM_REDUCE_AVG={value!r} is not known; allowed are sum (the shim sums and divides, the default) and "
            "native (oneCCL averages, for a stack known to do it right). Continuing with sum."
        )
    return value != "native"
