"""Names, interfaces, proxies and addresses that several nodes must agree on."""

from __future__ import annotations

import re

from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import in_distributed_run
from xpu_shim.doctor.machine import Machine

INTERFACES = ("FI_TCP_IFACE", "CCL_KVS_IFACE", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")


@check(
    "multinode.host_name",
    "the host name is not a loopback address",
    "Other nodes are told 127.0.1.1 and wait: `Gloo connectFullMesh failed`, `connection refused`, "
    "rendezvous time-outs.",
    "https://docs.pytorch.org/docs/stable/elastic/rendezvous.html",
)
def host_name(machine: Machine) -> Finding:
    if not in_distributed_run(machine):
        return skipped("the environment is not that of a run over several nodes")
    name = machine.need("/proc/sys/kernel/hostname")
    for line in (machine.read("/etc/hosts") or "").splitlines():
        fields = line.partition("#")[0].split()
        if name in fields[1:]:
            if fields[0].startswith("127.") or fields[0] == "::1":
                return warning(
                    f"/etc/hosts: {name} is {fields[0]}", f"sudo sed -i '/{name}/d' /etc/hosts && getent hosts {name}"
                )
            return ok(f"/etc/hosts: {name} is {fields[0]}")
    return ok(f"/etc/hosts does not name {name}; the name service answers")


@check(
    "multinode.interfaces",
    "the network interfaces that variables name exist",
    "oneCCL or gloo waits on an interface that is not there: `Unable to find address for: eth0`, or a hang at start.",
    "https://uxlfoundation.github.io/oneCCL/env-variables.html",
)
def interfaces(machine: Machine) -> Finding:
    given = {name: machine.environ[name] for name in INTERFACES if machine.environ.get(name)}
    if not given:
        return skipped(f"none of {', '.join(INTERFACES)} is set")
    present = {line.partition(":")[0].strip() for line in machine.need("/proc/net/dev").splitlines()[2:]}
    wrong = {
        name: value
        for name, value in given.items()
        for part in value.split(",")
        if not any(interface == part.partition(":")[0].lstrip("^=") for interface in present)
        and "mlx" not in part
        and part != "all"
    }
    if not wrong:
        return ok(", ".join(f"{name}={value}" for name, value in given.items()))
    return error(
        ", ".join(f"{name}={value}" for name, value in wrong.items()) + f"; there are {', '.join(sorted(present))}",
        "unset " + " ".join(wrong) + "; ip -br addr",
    )


@check(
    "multinode.master",
    "MASTER_ADDR is an address other nodes can reach",
    "With localhost every node meets only itself: the rendezvous waits for ranks that never come.",
    "https://docs.pytorch.org/docs/stable/elastic/run.html",
)
def master(machine: Machine) -> Finding:
    address = machine.environ.get("MASTER_ADDR")
    if address is None or not in_distributed_run(machine):
        return skipped("no MASTER_ADDR of a run over several nodes")
    if address == "localhost" or address.startswith("127.") or address == "::1":
        return error(
            f"MASTER_ADDR={address}",
            "export MASTER_ADDR=$(hostname -I | cut -d' ' -f1)   # of the first node, on all nodes",
        )
    return ok(f"MASTER_ADDR={address}")


@check(
    "multinode.ray_address",
    "the Ray cluster of RAY_ADDRESS answers",
    "`ConnectionError: Could not find any running Ray instance`, or ray.init() waits.",
    "https://docs.ray.io/en/latest/cluster/getting-started.html",
)
def ray_address(machine: Machine) -> Finding:
    address = machine.environ.get("RAY_ADDRESS", "")
    if address in ("", "auto", "local"):
        return skipped("RAY_ADDRESS names no host")
    found = re.fullmatch(r"(?:\w+://)?(\[[^\]]+\]|[^:/]+):(\d+)/?", address)
    if found is None:
        return error(f"RAY_ADDRESS={address} is not host:port", "export RAY_ADDRESS=<head node>:6379")
    problem = machine.reachable(found[1].strip("[]"), int(found[2]))
    if not problem:
        return ok(f"{address} accepts connections")
    return error(f"{address}: {problem}", "unset RAY_ADDRESS   # or on the head node: ray start --head --port=6379")


@check(
    "multinode.proxy",
    "the HTTP proxy is not used between local processes",
    "gRPC and HTTP clients of Ray and vLLM go to the proxy: `failed to connect to all addresses`, `503 "
    "Service Unavailable` "
    "from 127.0.0.1, or a wait without end.",
    "https://grpc.github.io/grpc/core/md_doc_environment_variables.html",
)
def proxy(machine: Machine) -> Finding:
    names = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "grpc_proxy")
    given = [name for name in names if machine.environ.get(name)]
    if not given:
        return ok("no proxy is set")
    exceptions = [
        part.strip()
        for name in ("no_proxy", "NO_PROXY")
        for part in machine.environ.get(name, "").split(",")
        if part.strip()
    ]
    missing = [host for host in ("localhost", "127.0.0.1") if host not in exceptions]
    if "*" in exceptions or not missing:
        return ok(f"{given[0]} with no_proxy={','.join(exceptions)}")
    return warning(
        f"{', '.join(given)} set, and no_proxy leaves out {' and '.join(missing)}",
        "export no_proxy=localhost,127.0.0.1,$(hostname -I | tr ' ' ',')$no_proxy NO_PROXY=$no_proxy",
    )


@check(
    "multinode.forwarding",
    "settings of this shell reach the Ray workers",
    "Workers of a running cluster have the environment of `ray start`, not of this shell; without the "
    "shim CCL_ and ZE_ "
    "settings are lost on the way.",
    "https://docs.ray.io/en/latest/ray-core/handling-dependencies.html",
)
def forwarding(machine: Machine) -> Finding:
    from xpu_shim.devices.rayenv import forwarded

    if machine.installed("ray") is None:
        return skipped("Ray is not installed")
    given = sorted(name for name in forwarded(machine.environ) if not name.startswith("XPU_SHIM"))
    if not given:
        return skipped("no CCL_, ZE_ or FI_ setting in this shell")
    off = machine.environ.get("XPU_SHIM") == "0" or "ray.runtime_environment" in machine.environ.get(
        "XPU_SHIM_DISABLE", ""
    )
    if not off:
        return ok(f"{', '.join(given)}: forwarded by the patch ray.runtime_environment")
    return warning(
        f"{', '.join(given)}, and the patch ray.runtime_environment is off",
        "ray stop; set them before `ray start` on every node, or: unset XPU_SHIM XPU_SHIM_DISABLE",
    )
