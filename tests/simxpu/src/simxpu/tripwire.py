"""Who used the device first.

A process must not touch ``torch.xpu`` before it has been pinned to its device: the first use fixes what it sees and
opens a context. With ``SIMXPU_TRIPWIRE=FILE`` each process appends a line to the file at that moment: JSON with
``pid``, ``argv0``,
``mask`` (ZE_AFFINITY_MASK as it was read) and ``stack``, the calling frames from the outermost to the innermost.
"""

import json
import os
import sys
import traceback

#: Frames kept; the innermost ones name the culprit.
_FRAMES = 25
_fired_in: int | None = None


def fire() -> None:
    """Note the first use of the device by this process; does nothing the next time, or if no file is given."""
    global _fired_in
    path = os.environ.get("SIMXPU_TRIPWIRE")
    if not path or _fired_in == os.getpid():
        return
    _fired_in = os.getpid()
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(os.path.dirname(__file__))]
    line = json.dumps(
        {
            "pid": os.getpid(),
            "argv0": sys.argv[0] if sys.argv else "",
            "mask": os.environ.get("ZE_AFFINITY_MASK"),
            "stack": [f"{f.filename}:{f.lineno} {f.name}" for f in frames[-_FRAMES:]],
        }
    )
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(fd, line.encode() + b"\n")  # one write, so that lines of several processes do not mix
    finally:
        os.close(fd)
