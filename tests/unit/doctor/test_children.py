"""Real child processes: a torch that hangs, crashes or works, pidfd under a seccomp filter, a start-up file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from machines import SITE, healthy

from xpu_shim.doctor import probe
from xpu_shim.doctor.check import ERROR, OK, SKIPPED, UNKNOWN, examine
from xpu_shim.doctor.checks import all_checks
from xpu_shim.doctor.machine import CouldNotLook, Machine, run

ROOT = Path(__file__).resolve().parents[3]
BY_ID = {item.id: item for item in all_checks()}

WORKING_TORCH = """
__version__ = "2.13.0+xpu"
from torch import version
from torch import xpu
"""


def stub_torch(tree, xpu="", top=WORKING_TORCH):
    """A torch package whose `torch.xpu` has this source."""
    tree.write(f"{SITE}/torch/__init__.py", textwrap.dedent(top))
    tree.write(f"{SITE}/torch/xpu.py", textwrap.dedent(xpu))
    tree.write(f"{SITE}/torch/distributed.py", "def is_xccl_available():\n    return True\n")
    return tree.machine(
        python=sys.executable,
        runner=run,
        limit=20.0,
        environ={**os.environ, "PYTHONPATH": str(tree.root / SITE), "XPU_SHIM": "0"},
    )


def test_a_working_torch(tree):
    machine = stub_torch(tree, "def device_count():\n    return 2\n")
    assert examine(BY_ID["torch.imports"], machine).finding.state == OK
    assert examine(BY_ID["torch.device_count"], machine).finding.state == OK
    assert examine(BY_ID["torch.xccl"], machine).finding.state == OK
    assert examine(BY_ID["driver.two_runtimes"], machine).finding.state == OK


def test_a_driver_that_hangs_is_a_finding(tree):
    machine = stub_torch(tree, "import time\ndef device_count():\n    time.sleep(600)\n")
    machine.limit = 2.0
    finding = examine(BY_ID["torch.imports"], machine).finding
    assert finding.state == ERROR
    assert "torch.xpu.device_count(): it did not end within 2 s" in finding.evidence
    assert examine(BY_ID["torch.device_count"], machine).finding.state == UNKNOWN


def test_a_driver_that_crashes_is_a_finding(tree):
    machine = stub_torch(tree, top="import os\nos.abort()\n")
    finding = examine(BY_ID["torch.imports"], machine).finding
    assert finding.state == ERROR
    assert "import torch: it was killed by SIGABRT" in finding.evidence


def test_an_import_error_is_named(tree):
    machine = stub_torch(tree, top="raise ImportError('libsycl.so.8: cannot open shared object file: No such file')\n")
    finding = examine(BY_ID["torch.imports"], machine).finding
    assert "mixed_oneapi" in finding.evidence
    assert "setvars.sh" in finding.fix


def test_a_child_and_its_children_end_at_the_limit(tmp_path):
    mark = tmp_path / "pid"
    script = f"import os, time\npid = os.fork()\nif pid: open({str(mark)!r}, 'w').write(str(pid))\ntime.sleep(600)"
    ran = run([sys.executable, "-c", script], 2.0, os.environ)
    assert ran.status is None
    child = int(mark.read_text())
    for _ in range(50):  # an orphan is reaped by init, a moment later
        if not Path(f"/proc/{child}").exists() or ") Z " in Path(f"/proc/{child}/stat").read_text():
            return
        subprocess.run(["sleep", "0.1"], check=True)
    raise AssertionError(f"process {child} outlived the limit")


def test_a_command_that_is_not_there():
    with pytest.raises(CouldNotLook, match="could not be started"):
        run(["/nonexistent/python"], 5.0, os.environ)


SECCOMP = """
import ctypes, os, struct, sys
# Berkeley packet filter: load the number of the system call; if it is pidfd_getfd, fail with EPERM; else allow.
program = b"".join(
    struct.pack("HBBI", *line)
    for line in ((0x20, 0, 0, 0), (0x15, 0, 1, 438), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000))
)
keep = ctypes.create_string_buffer(program, len(program))
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
filter = Filter(4, ctypes.cast(keep, ctypes.c_void_p))
assert libc.prctl(38, 1, 0, 0, 0) == 0, ctypes.get_errno()
assert libc.prctl(22, 2, ctypes.byref(filter), 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_pidfd_where_a_seccomp_filter_forbids_it(tree):
    """What Docker's default profile did: the call itself is refused, by the kernel."""

    def confined(argv, seconds, environ):
        return run([sys.executable, "-c", SECCOMP, *argv], seconds, environ)

    machine = tree.machine(python=sys.executable, runner=confined)
    tree.write("/.dockerenv")
    finding = examine(BY_ID["container.pidfd"], machine).finding
    assert finding.state == ERROR
    assert f"pidfd_getfd: {os.strerror(errno.EPERM)}" in finding.evidence
    assert "--cap-add SYS_PTRACE" in finding.fix


def test_pidfd_where_nothing_forbids_it(tree):
    script = Path(probe.SCRIPT).with_name("pidfd_child.py")
    ran = run([sys.executable, "-I", str(script)], 20, os.environ)
    assert ran.status == 0
    # A hardened host (yama) forbids it too; either way there is an answer.
    assert '"errno": ' in ran.out


def test_the_hook_in_a_fresh_interpreter(tmp_path):
    """A real start-up file on a real search path, and none."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(ROOT)!r})\nimport xpu_shim._boot as b\nb.init()\n"
    )
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("XPU_SHIM", "PYTHON"))}
    machine = Machine(environ={**plain, "PYTHONPATH": str(site)})
    assert examine(BY_ID["python.hook"], machine).finding.state == OK
    # The same interpreter without start-up files, as under `python -S`.
    bare = Machine(environ=plain, runner=lambda argv, seconds, env: run([argv[0], "-S", *argv[1:]], seconds, env))
    finding = examine(BY_ID["python.hook"], bare).finding
    assert finding.state == ERROR
    assert "pip install" in finding.fix


def test_permissions_of_a_real_unprivileged_user(tmp_path):
    """As somebody else than root: the same answer from `os.access` as from the mode bits."""
    tree = healthy(tmp_path / "machine")
    (tree.root / "dev/dri/renderD128").chmod(0o000)
    machine = Machine(root=str(tree.root), environ={})
    item = BY_ID["hardware.permissions"]
    assert examine(item, machine).finding.state == (OK if os.getuid() == 0 else ERROR)
    folder = tree.root
    while os.getuid() == 0 and folder != Path("/tmp") and folder != Path("/"):
        folder.chmod(folder.stat().st_mode | 0o055)  # pytest's own directory is closed to others
        folder = folder.parent
    child = os.fork()  # a fork, because another user may not even be able to start this interpreter
    if child == 0:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        os._exit(7 if examine(item, machine).finding.state == ERROR else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# -- probe -------------------------------------------------------------------------------------------------------------


def test_probe_without_torch(tmp_path):
    site = tmp_path / "empty"
    site.mkdir()
    (site / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    machine = Machine(environ={**os.environ, "PYTHONPATH": str(site)}, limit=20.0)
    (result,) = probe.run(machine, 20, 20)
    assert result.finding.state == UNKNOWN


def test_probe_counts_nothing(tree):
    machine = stub_torch(tree, "def device_count():\n    return 0\n")
    (result,) = probe.run(machine, 20, 20)
    assert result.finding.state == ERROR
    assert "counts no xpu device" in result.finding.evidence


def test_probe_says_at_which_stage_it_hung(tree):
    machine = stub_torch(
        tree,
        "import time\ndef device_count():\n    return 1\ndef set_device(index):\n    time.sleep(600)\n",
    )
    device, collective = probe.run(machine, 2, 2)
    assert device.finding.state == ERROR
    assert "xpu:0, select device: it did not end within 2 s" in device.finding.evidence
    assert collective.finding.state == SKIPPED


def test_probe_names_a_known_failure(tree):
    machine = stub_torch(
        tree,
        "def device_count():\n    return 2\ndef set_device(index):\n    raise "
        "RuntimeError('UR_RESULT_ERROR_DEVICE_LOST (20)')\n",
    )
    first, second, collective = probe.run(machine, 20, 20)
    assert first.finding.state == second.finding.state == ERROR
    assert "device_lost" in first.finding.evidence
    assert collective.finding.state == UNKNOWN
