"""Known fatal errors that pass through a patched call get a note with cause and cure; nothing is swallowed.

For `except` branches alone: the table of known errors is imported when there is an error, not before.
"""

from __future__ import annotations


def explain(error: BaseException) -> None:
    """Add the note to `error` if it is a known one; the caller re-raises it. Never raises."""
    try:
        from xpu_shim.doctor.notes import annotate

        annotate(error)
    except Exception:
        return
