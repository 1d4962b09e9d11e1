"""What containers take away: pidfd, the by-path directory, a network card oneCCL can use."""

from __future__ import annotations

import errno
import json
import os

from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import ended, last_lines
from xpu_shim.doctor.machine import CouldNotLook, Machine

FLAGS = "docker run --cap-add SYS_PTRACE --security-opt seccomp=unconfined ..."


@check(
    "container.pidfd",
    "a rank may fetch another rank's file descriptors (pidfd_getfd)",
    "oneCCL exchanges memory handles that way. Where it is forbidden: `pidfd is not supported, fallbacks "
    "to drmfd exchange "
    "mode`, and then `zeMemOpenIpcHandle` errors or a hang without end. CCL_ZE_IPC_EXCHANGE=sockets does "
    "not help: oneCCL "
    "falls back to drmfd all the same.",
    "https://github.com/uxlfoundation/oneCCL/issues/217",
)
def pidfd(machine: Machine) -> Finding:
    if len(machine.cards) < 2:
        return skipped("fewer than two discrete Intel GPUs")
    script = os.path.join(os.path.dirname(os.path.dirname(__file__)), "pidfd_child.py")
    ran = machine.run([machine.python, "-I", script], 20)
    try:
        answer = json.loads(ran.out)
    except ValueError:
        raise CouldNotLook(f"the test process: {ended(ran.status, 20)}: {last_lines(ran.err)}") from None
    if answer["errno"] == 0:
        return ok("a process fetched a descriptor of its sibling")
    what = f"{answer['call']}: {os.strerror(answer['errno'])} ({errno.errorcode.get(answer['errno'], answer['errno'])})"
    if machine.environ.get("CCL_ZE_IPC_EXCHANGE") == "sockets":
        what += "; CCL_ZE_IPC_EXCHANGE=sockets has no effect then"
    if answer["errno"] == errno.ENOSYS:
        return error(what, "uname -r   # pidfd_getfd needs Linux 5.6")
    scope = machine.read("/proc/sys/kernel/yama/ptrace_scope")
    if answer["call"] == "pidfd_getfd" and scope not in (None, "0") and not machine.in_container:
        return warning(f"{what}; kernel.yama.ptrace_scope={scope}", "sudo sysctl -w kernel.yama.ptrace_scope=0")
    return error(what, FLAGS)


@check(
    "container.by_path",
    "/dev/dri/by-path is there",
    "oneCCL opens it: `ze_fd_manager.cpp:144 init_device_fds: EXCEPTION: opendir failed: could not open "
    "device directory`.",
    "https://github.com/uxlfoundation/oneCCL/issues/217",
)
def by_path(machine: Machine) -> Finding:
    if not machine.cards:
        return skipped("no discrete Intel GPU")
    if not machine.exists("/dev/dri"):
        return skipped("no /dev/dri, see hardware.device_files")
    names = machine.listdir("/dev/dri/by-path")
    if names:
        return ok(f"{len(names)} entries")
    finding = warning if len(machine.cards) < 2 else error
    return finding(
        "/dev/dri/by-path does not exist" if names is None else "/dev/dri/by-path is empty",
        "docker run --device /dev/dri -v /dev/dri/by-path:/dev/dri/by-path ...",
    )


@check(
    "container.network",
    "oneCCL does not pick a container bridge for its network",
    "With ofi it may take br-* or docker0: a hang at the first collective.",
    "https://github.com/search?q=%22XCCL+%2F+oneCCL+Known+Issues%22&type=code",
)
def network(machine: Machine) -> Finding:
    if len(machine.cards) < 2:
        return skipped("fewer than two discrete Intel GPUs")
    lines = machine.need("/proc/net/dev").splitlines()[2:]
    bridges = [
        name for line in lines if (name := line.partition(":")[0].strip()).startswith(("br-", "docker", "virbr"))
    ]
    if not bridges:
        return ok("no bridge among the interfaces")
    for name in ("FI_TCP_IFACE", "FI_PROVIDER", "CCL_KVS_IFACE"):
        if machine.environ.get(name):
            return ok(f"{', '.join(bridges)}, and {name}={machine.environ[name]}")
    if not machine.in_container:
        return ok(f"{', '.join(bridges)} on the host itself")
    return warning(
        f"{', '.join(bridges)} in a container with the host's network",
        "export FI_PROVIDER=shm CCL_ATL_SHM=1   # one node; over several: FI_TCP_IFACE=<the real interface>",
    )
