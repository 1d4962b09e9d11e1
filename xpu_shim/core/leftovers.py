"""Files of this process that have to go even if it is killed.

A process that gets SIGKILL, as Ray sends it at the end of a run, cannot remove anything. A shell in a session of its own,
which nobody kills with it, reads the paths from a pipe; the pipe ends with this process, however that happens, and then the
shell removes what is still there and exits.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading

from xpu_shim.core.log import logger

_log = logger("xpu_shim.rollout")

#: The inner shell is nobody's child, so that no waiting for children and no killing of them meets it.
#: A line is an inode number (0: whatever is there then) and a path, or a dash and a path that is to be left alone.
_SCRIPT = """
exec 3<&0
{
  while IFS= read -r line <&3; do
    case $line in
      "- "*) for known; do shift; [ "${known#* }" = "${line#- }" ] || set -- "$@" "$known"; done ;;
      *) set -- "$@" "$line" ;;
    esac
  done
  for line; do
    inode=${line%% *} path=${line#* }
    if [ "$inode" != 0 ]; then
      found=$(ls -di -- "$path" 2>/dev/null)
      found=${found#"${found%%[! ]*}"}
      [ "$found" = "$line" ] || continue
    fi
    rm -f -- "$path"
  done
} </dev/null &
exec 3<&-
"""

_lock = threading.Lock()
#: The writing end of the pipe; -1 until there is something to remove.
_pipe = -1
_tried = False


def remove_after_death(path: str, *, shared_name: bool = False) -> None:
    """Have the file at `path` removed once this process has ended, if it is still there then. Never raises.

    Args:
        path: absolute; the name of a file that no other process needs when this one has gone.
        shared_name: another process may later make a file of its own by this name. Only the one that is there now is
            removed. Call `leave_alone` once it is gone: its inode number may then be that file's.
    """
    global _pipe, _tried
    if not os.path.isabs(path) or "\n" in path:
        return
    inode = 0
    if shared_name:
        try:
            inode = os.lstat(path).st_ino
        except OSError:
            return
    with _lock:
        if not _tried:
            _tried = True
            try:
                _pipe = _start()
            except (OSError, subprocess.SubprocessError) as error:
                _log.debug("no shell to clean up after this process (%s); if it is killed, %s stays", error, path)
        _tell(str(inode), path)


def leave_alone(path: str) -> None:
    """Take back `remove_after_death(path)`. Never raises."""
    with _lock:
        _tell("-", path)


def _tell(what: str, path: str) -> None:
    if _pipe >= 0:
        with contextlib.suppress(OSError):  # the shell was killed: nothing is lost but its service
            os.write(_pipe, f"{what} ".encode() + os.fsencode(path) + b"\n")


def _start() -> int:
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "xpu-shim-leftovers"],
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    except BaseException:
        os.close(write)
        raise
    finally:
        os.close(read)
    shell.wait(30)  # it only leaves the inner one behind
    return write


def _forget() -> None:
    """In a forked child: the files are the parent's, and the pipe must end with that."""
    global _lock, _pipe, _tried
    _lock = threading.Lock()
    if _pipe >= 0:
        os.close(_pipe)
    _pipe, _tried = -1, False


os.register_at_fork(after_in_child=_forget)
