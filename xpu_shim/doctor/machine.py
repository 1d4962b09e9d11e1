"""The machine as the checks see it: one object through which every file, variable and command is read.

A test builds a sick machine as a directory tree and hands it in; the checks are the same ones that run on a real one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from xpu_shim.intel.devices import IntelGpu, intel_gpus

T = TypeVar("T")


class CouldNotLook(Exception):
    """Something a check needs could not be read; the message says what and why. Never counted as fine."""


class Ran(NamedTuple):
    """What a child process did. `status` is None where it was ended at the time limit, negative for a signal."""

    status: int | None
    out: str
    err: str


class Space(NamedTuple):
    """Size and free space of a file system, in bytes."""

    total: int
    free: int


class Package(NamedTuple):
    """An installed distribution: its version, and where its metadata is."""

    version: str
    metadata: str


def run(argv: Sequence[str], seconds: float, environ: Mapping[str, str]) -> Ran:
    """Run a command with a time limit; it is killed with all its children at the limit.

    Raises:
        CouldNotLook: if it cannot be started.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise CouldNotLook(f"{argv[0]} could not be started: {error.strerror}") from error
    try:
        out, err = child.communicate(timeout=seconds)
        return Ran(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        _kill_group(child)
        try:
            out, err = child.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            # A process in an uninterruptible driver call cannot be killed, and must not hold the doctor up.
            out, err = "", "it could not even be killed: it hangs inside the kernel driver"
        return Ran(None, out, err)


def _kill_group(child: subprocess.Popen[str]) -> None:
    import signal

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def space(path: str) -> Space:
    """Size and free space of the file system at `path`.

    Raises:
        OSError: as `os.statvfs`.
    """
    stat = os.statvfs(path)
    return Space(stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail)


def connect(host: str, port: int, seconds: float) -> None:
    """Open and close a TCP connection.

    Raises:
        OSError: if it cannot be opened within the limit.
    """
    socket.create_connection((host, port), timeout=seconds).close()


@dataclass
class Machine:
    """One machine, or a directory tree that plays one."""

    #: Directory that stands for "/".
    root: str = "/"
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    #: Interpreter of child processes.
    python: str = sys.executable
    #: Directories searched for installed packages, as `sys.path`.
    site: Sequence[str] = field(default_factory=lambda: [entry or os.getcwd() for entry in sys.path])
    #: Version of the interpreter.
    version: tuple[int, ...] = tuple(sys.version_info[:3])
    #: Longest wait for one child process, in seconds.
    limit: float = 60.0
    #: Whose permissions count; None for this process.
    uid: int | None = None
    groups: frozenset[int] | None = None
    runner: Callable[[Sequence[str], float, Mapping[str, str]], Ran] = run
    space_of: Callable[[str], Space] = space
    connector: Callable[[str, int, float], None] = connect
    _lock: Any = field(default_factory=threading.Lock, repr=False)
    _locks: dict[str, Any] = field(default_factory=dict, repr=False)
    _kept: dict[str, tuple[Any, BaseException | None]] = field(default_factory=dict, repr=False)

    def once(self, key: str, make: Callable[[], T]) -> T:
        """`make()`, called once a machine whatever the number of checks and threads; an exception is kept too."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.RLock())
        with lock:
            if key not in self._kept:
                try:
                    self._kept[key] = (make(), None)
                except Exception as error:
                    self._kept[key] = (None, error)
            value, problem = self._kept[key]
        if problem is not None:
            raise problem
        return value

    # -- files ---------------------------------------------------------------------------------------------------

    def path(self, path: str) -> str:
        """Where an absolute path of this machine really is; a path that is below `root` already stays."""
        sysfs = self.environ.get("XPU_SHIM_SYSFS")
        if sysfs and (path == "/sys" or path.startswith("/sys/")):
            return sysfs + path[len("/sys") :]
        if sysfs and path.startswith("/dev/dri"):  # device files belong beside the sysfs that was named
            return os.path.join(os.path.dirname(os.path.abspath(sysfs)), path.lstrip("/"))
        if self.root == "/" or path.startswith(self.root.rstrip("/") + "/"):
            return path
        return os.path.join(self.root, path.lstrip("/"))

    @property
    def sysfs(self) -> str:
        """Directory that stands for "/sys"."""
        return self.path("/sys")

    def read(self, path: str) -> str | None:
        """Text of a file, stripped; None if it does not exist.

        Raises:
            CouldNotLook: if it exists and cannot be read.
        """
        with _looking(path):
            try:
                with open(self.path(path), encoding="utf-8", errors="replace") as file:
                    return file.read().strip()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def need(self, path: str) -> str:
        """Text of a file that must be there.

        Raises:
            CouldNotLook: if it is not, or cannot be read.
        """
        text = self.read(path)
        if text is None:
            raise CouldNotLook(f"{path} does not exist")
        return text

    def listdir(self, path: str) -> list[str] | None:
        """Sorted names in a directory; None if it does not exist.

        Raises:
            CouldNotLook: if it exists and cannot be listed.
        """
        with _looking(path):
            try:
                return sorted(os.listdir(self.path(path)))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def exists(self, path: str) -> bool:
        """Whether a path exists.

        Raises:
            CouldNotLook: if a directory above it cannot be searched.
        """
        with _looking(path):
            try:
                os.stat(self.path(path))
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def stat(self, path: str) -> os.stat_result:
        """`os.stat` of a path.

        Raises:
            CouldNotLook: if it cannot be had.
        """
        with _looking(path):
            return os.stat(self.path(path))

    def may_open(self, path: str) -> bool:
        """Whether the user may read and write a file, access control lists included where it is this process."""
        if self.uid is None or self.groups is None:
            return os.access(self.path(path), os.R_OK | os.W_OK)
        if self.uid == 0:
            return True
        stat = self.stat(path)
        shift = 6 if stat.st_uid == self.uid else 3 if stat.st_gid in self.groups else 0
        return (stat.st_mode >> shift) & 0o6 == 0o6

    def space(self, path: str) -> Space:
        """Size and free space of the file system at `path`.

        Raises:
            CouldNotLook: if it is not there or cannot be asked.
        """
        with _looking(path):
            return self.space_of(self.path(path))

    def which(self, command: str) -> str | None:
        """Where a command is found on PATH, or None."""
        for folder in self.environ.get("PATH", "").split(os.pathsep):
            path = os.path.join(folder, command)
            if folder and os.access(self.path(path), os.X_OK):
                return path
        return None

    # -- processes and network -----------------------------------------------------------------------------------

    def run(self, argv: Sequence[str], seconds: float | None = None, environ: Mapping[str, str] | None = None) -> Ran:
        """Run a command with a time limit and the machine's environment.

        Raises:
            CouldNotLook: if it cannot be started.
        """
        return self.runner(
            argv, self.limit if seconds is None else seconds, self.environ if environ is None else environ
        )

    def reachable(self, host: str, port: int, seconds: float = 2.0) -> str:
        """Empty if a TCP connection can be opened, else why not."""
        try:
            self.connector(host, port, seconds)
        except OSError as error:
            return str(error) or type(error).__name__
        return ""

    # -- what several checks ask for -----------------------------------------------------------------------------

    @property
    def gpus(self) -> tuple[IntelGpu, ...]:
        """The usable Intel GPUs, integrated ones included, in Level Zero's order.

        Raises:
            CouldNotLook: if sysfs is not there or cannot be read.
        """
        return self.once("gpus", self._gpus)

    def _gpus(self) -> tuple[IntelGpu, ...]:
        nodes = self.listdir("/sys/class/drm")
        if nodes is None:
            if not self.exists("/sys/class"):
                raise CouldNotLook("/sys/class does not exist: sysfs is not mounted")
            return ()
        for node in nodes:
            if node.startswith("renderD"):
                self.read(f"/sys/class/drm/{node}/device/vendor")  # unreadable must not look like another vendor's
        return intel_gpus(self.sysfs)

    @property
    def cards(self) -> tuple[IntelGpu, ...]:
        """The discrete ones of `gpus`."""
        return tuple(gpu for gpu in self.gpus if gpu.discrete)

    @property
    def in_container(self) -> bool:
        """Whether this runs in a container."""
        return self.once("container", self._in_container)

    def _in_container(self) -> bool:
        if self.exists("/.dockerenv") or self.exists("/run/.containerenv") or "container" in self.environ:
            return True
        return any(word in (self.read("/proc/1/cgroup") or "") for word in ("docker", "kubepods", "containerd", "lxc"))

    @property
    def packages(self) -> dict[str, Package]:
        """Installed distributions by normalised name; the first on the search path counts, as for an import."""
        return self.once("packages", self._packages)

    def _packages(self) -> dict[str, Package]:
        found: dict[str, Package] = {}
        for folder in self.site:
            try:
                names = os.listdir(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise CouldNotLook(f"{folder}: {error.strerror}") from error
            for name in names:
                stem, extension = os.path.splitext(name)
                if extension in (".dist-info", ".egg-info"):
                    title, _, version = stem.partition("-")
                    key = title.lower().replace("_", "-").replace(".", "-")
                    found.setdefault(key, Package(version.partition("-py")[0], os.path.join(folder, name)))
        return found

    def installed(self, *names: str) -> str | None:
        """Version of the first of these distributions that is installed, or None.

        Raises:
            CouldNotLook: if a package directory cannot be listed.
        """
        for name in names:
            package = self.packages.get(name)
            if package is not None:
                return package.version
        return None

    def module(self, *parts: str) -> str | None:
        """Path of a file or directory of an installed package, as in `module("torch", "version.py")`, or None."""
        for folder in self.site:
            path = os.path.join(folder, *parts)
            if os.path.exists(path):
                return path
        return None


@contextlib.contextmanager
def _looking(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CouldNotLook(f"{path}: {error.strerror or error}") from error
