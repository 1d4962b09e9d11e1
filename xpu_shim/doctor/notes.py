"""Notes on exceptions that pass through patched calls: what the error means on an Intel GPU, and what to do.

Standard library only, and cheap where nothing matches: one search over the error's text.
"""

from __future__ import annotations

from xpu_shim.doctor.signatures import find

PREFIX = "xpu-shim: "

#: Longest text that is searched; what names an error stands at the ends of it.
_LIMIT = 100_000


def annotate(error: BaseException) -> None:
    """Add cause and cure to a known error, once, and leave any other alone. Never raises, never swallows.

    From Python 3.11 on it is a note (`BaseException.add_note`), shown below the traceback. In 3.10 it is appended to
    the first argument of the exception where that is a text.
    """
    try:
        text = f"{type(error).__name__}: {error}"
        if PREFIX in text or any(PREFIX in note for note in getattr(error, "__notes__", ())):
            return
        known = find(text if len(text) <= _LIMIT else text[: _LIMIT // 2] + text[-_LIMIT // 2 :])
        if not known:
            return
        first = known[0]
        note = f"{PREFIX}{first.cause}\n{PREFIX}{first.cure}\n{PREFIX}{first.links[0]}"
        if hasattr(error, "add_note"):
            error.add_note(note)
        elif error.args and isinstance(error.args[0], str):
            error.args = (f"{error.args[0]}\n{note}", *error.args[1:])
    except Exception:
        # The caller is about to re-raise the user's error: whatever went wrong here matters less than that one.
        return
