"""Runs at every interpreter start: put one watcher on `sys.meta_path`, or arm at once in a child of a verl process.

Standard library only, and only `sys` and `os` of it, which the interpreter has loaded by then. Nothing here may print,
raise, start a process, or import more: it runs in pip, in shells' prompt helpers and in programs that never heard of
Intel.
"""

import sys

_started: list = []  # non-empty once `init` ran: the `.pth` line runs twice per start in a venv, and `sitecustomize` again


class Watch:
    """A finder that finds nothing: it notices the first look-up of `verl` and arms the real finder."""

    __slots__ = ()

    def find_spec(self, name, path=None, target=None):
        if name == "verl":
            arm()
        return None


def init():
    """Install the hook in this process; idempotent, silent, never raises."""
    if _started:
        return
    try:
        import os

        if os.environ.get("XPU_SHIM") == "0":
            return  # and may be called again: a program can still decide otherwise before it imports verl
        _started.append(True)
        if os.environ.get("XPU_SHIM_ARMED") == "1" or "verl" in sys.modules:
            arm()
        else:
            sys.meta_path.insert(0, Watch())
    except Exception:
        pass


def arm():
    """Replace the watcher by the finder that knows every target."""
    try:
        from xpu_shim import _finder

        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder) is not Watch]
        _finder.install()
    except Exception as error:
        _started.append(error)  # shown by `xpu-shim status`; raising here would break the user's import of verl


init()  # importing is calling: the `.pth` line and `sitecustomize` stay as short as they can be
