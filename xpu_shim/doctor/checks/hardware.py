"""Are there Intel GPUs, does the kernel drive them, and may this user open them?"""

from __future__ import annotations

from collections.abc import Iterable

from xpu_shim.doctor.check import Finding, check, error, ok, skipped, warning
from xpu_shim.doctor.facts import GIB, bar_size, describe, intel_display_devices
from xpu_shim.doctor.machine import CouldNotLook, Machine
from xpu_shim.intel.devices import DISCRETE_IDS, INTEL

COUNT_ZERO = "`XPU device count is zero!`, `No XPU devices are available`"


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items)


@check(
    "hardware.gpus",
    "discrete Intel GPUs that this process can use",
    f"Without one nothing runs on xpu: {COUNT_ZERO}.",
    "https://dgpu-docs.intel.com/driver/installation.html",
)
def gpus(machine: Machine) -> Finding:
    if machine.cards:
        return ok(_listed(describe(gpu) for gpu in machine.cards))
    if machine.gpus:
        return warning(
            "only integrated: " + _listed(describe(gpu) for gpu in machine.gpus),
            "lspci -nn -d 8086::0300   # training needs a discrete card (Arc, Arc Pro, Data Center GPU Max)",
        )
    if "microsoft" in (machine.read("/proc/version") or "").lower():
        raise CouldNotLook("WSL 2: the card is behind /dev/dxg and sysfs does not show it")
    return error(
        "no Intel GPU with a DRM render node", "lspci -nn | grep -Ei 'vga|display|3d'   # is a card there at all?"
    )


@check(
    "hardware.kernel_driver",
    "every Intel GPU on the PCI bus has a render node of xe or i915",
    f"A card no kernel driver took is invisible to Level Zero: {COUNT_ZERO}.",
    "https://dgpu-docs.intel.com/devices/hardware-table.html",
)
def kernel_driver(machine: Machine) -> Finding:
    devices = {
        address: device_id
        for address, device_id in intel_display_devices(machine).items()
        if any(first <= device_id <= last for first, last in DISCRETE_IDS)
    }
    if not devices:
        return skipped("no discrete Intel display controller on the PCI bus")
    driverless = {}
    for address, device_id in devices.items():
        names = machine.listdir(f"/sys/bus/pci/devices/{address}/drm") or ()
        if not any(name.startswith("renderD") for name in names):
            driverless[address] = device_id
    if not driverless:
        return ok(f"{len(devices)} of {len(devices)} have one")
    return error(
        _listed(f"8086:{device_id:04x} at {address} has none" for address, device_id in driverless.items()),
        "sudo modprobe xe && sudo dmesg | grep -E ' xe | i915 ' | tail   # needs a kernel that knows the "
        "card; see link",
    )


@check(
    "hardware.device_files",
    "every Intel render node of sysfs has its file in /dev/dri",
    "A container without the files sees the cards in sysfs and cannot open them: `XPU device count is zero!`.",
    "https://github.com/intel/llm-scaler/issues/370",
)
def device_files(machine: Machine) -> Finding:
    nodes = [
        node
        for node in machine.listdir("/sys/class/drm") or ()
        if node.startswith("renderD") and int(machine.read(f"/sys/class/drm/{node}/device/vendor") or "0", 16) == INTEL
    ]
    if not nodes:
        return skipped("sysfs shows no Intel render node")
    if machine.environ.get("XPU_SHIM_SYSFS") and not machine.exists("/dev/dri"):
        return skipped("XPU_SHIM_SYSFS names a tree without device files")
    missing = [node for node in nodes if not machine.exists(f"/dev/dri/{node}")]
    if not missing:
        return ok(_listed(f"/dev/dri/{node}" for node in nodes))
    fix = "docker run --device /dev/dri -v /dev/dri/by-path:/dev/dri/by-path ..."
    evidence = _listed(f"/dev/dri/{node}" for node in missing) + " missing"
    if len(missing) == len(nodes):
        return error(evidence, fix)
    return warning(f"{evidence}; {len(nodes) - len(missing)} of {len(nodes)} were handed in", fix)


@check(
    "hardware.permissions",
    "this user may read and write the render nodes",
    "`XPU device count is zero!` although `sudo` sees the cards: the user is not in the group that owns /dev/dri, or "
    "the group has another number in the container.",
    "https://github.com/intel/llm-scaler/issues/370",
)
def permissions(machine: Machine) -> Finding:
    nodes = [f"/dev/dri/{gpu.node}" for gpu in machine.gpus if machine.exists(f"/dev/dri/{gpu.node}")]
    if not nodes:
        return skipped("no Intel render node in /dev/dri")
    closed = [node for node in nodes if not machine.may_open(node)]
    if not closed:
        return ok(f"{len(nodes)} of {len(nodes)} can be opened")
    stat = machine.stat(closed[0])
    group = _group_name(machine, stat.st_gid)
    evidence = f"cannot open {_listed(closed)} (mode {stat.st_mode & 0o777:03o}, group {group or stat.st_gid})"
    if machine.in_container:
        return error(evidence, f"docker run --group-add {stat.st_gid} ...   # the number of the host's group")
    if group is None:
        return error(
            f"{evidence}; no group has that number here",
            f"sudo groupadd -g {stat.st_gid} render-host && sudo usermod -aG render-host $USER   # then log in again",
        )
    return error(evidence, f"sudo usermod -aG {group} $USER   # then log in again, or: newgrp {group}")


def _group_name(machine: Machine, gid: int) -> str | None:
    for line in (machine.read("/etc/group") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(gid):
            return fields[0]
    return None


@check(
    "hardware.integrated",
    "the integrated GPU is not what training is placed on",
    "With a mask that leaves the integrated GPU, everything runs there: 6 to 10 times slower, "
    "`could not create a primitive`, `PI_ERROR_INVALID_DEVICE`.",
    "https://github.com/intel/AI-Playground/issues/79",
)
def integrated(machine: Machine) -> Finding:
    from xpu_shim.doctor.facts import visible

    inside = [gpu for gpu in machine.gpus if not gpu.discrete]
    if not inside or not machine.cards:
        return skipped("no integrated Intel GPU beside a discrete one")
    devices = visible(machine)
    if devices and not any(device.discrete for device in devices):
        wanted = ",".join(str(number) for number, gpu in enumerate(machine.gpus) if gpu.discrete)
        return error(
            f"ZE_AFFINITY_MASK={machine.environ.get('ZE_AFFINITY_MASK')} leaves only {describe(inside[0])}",
            f"export ZE_AFFINITY_MASK={wanted}",
        )
    return ok(f"torch leaves {describe(inside[0])} out, as a discrete card is there")


@check(
    "hardware.resizable_bar",
    "the whole memory of a card is in the host's address space (Resizable BAR)",
    "With a 256 MiB window copies to and from the card crawl and peer access, which oneCCL wants, is not possible.",
    "https://www.intel.com/content/www/us/en/support/articles/000090831/graphics.html",
)
def resizable_bar(machine: Machine) -> Finding:
    if not machine.cards:
        return skipped("no discrete Intel GPU")
    sizes = {gpu: bar_size(machine, gpu) for gpu in machine.cards}
    known = {gpu: size for gpu, size in sizes.items() if size is not None}
    if not known:
        raise CouldNotLook("sysfs shows no PCI resources of the cards")
    small = {gpu: size for gpu, size in known.items() if size < GIB}
    if not small:
        return ok(f"windows of {min(known.values()) / GIB:.0f} GiB and more")
    return warning(
        _listed(f"{describe(gpu)}: {size >> 20} MiB" for gpu, size in small.items()),
        "sudo lspci -vv -d 8086: | grep -i -A1 'resizable bar'   # enable 'Above 4G Decoding' and "
        "'Re-Size BAR' in the BIOS",
    )


@check(
    "hardware.virtual_machine",
    "several cards in a virtual machine",
    "Peer access between passed-through cards often fails late: `ze error at zeCommandQueueExecuteCommandLists, code: "
    "ZE_RESULT_ERROR_UNKNOWN` in the first backward.",
    "https://github.com/intel/torch-xpu-ops/issues/4241",
)
def virtual_machine(machine: Machine) -> Finding:
    if len(machine.cards) < 2:
        return skipped("fewer than two discrete Intel GPUs")
    flags = next((line for line in machine.need("/proc/cpuinfo").splitlines() if line.startswith("flags")), "")
    vendor = machine.read("/sys/class/dmi/id/sys_vendor") or "unknown"
    if "hypervisor" not in flags.split():
        return ok("not a virtual machine")
    if machine.environ.get("CCL_TOPO_P2P_ACCESS") == "0":
        return ok(f"virtual machine ({vendor}), and CCL_TOPO_P2P_ACCESS=0 is set")
    return warning(
        f"virtual machine ({vendor}) with {len(machine.cards)} cards",
        "export CCL_TOPO_P2P_ACCESS=0   # if the first collective or backward fails; peer access is then not used",
    )


@check(
    "hardware.numa",
    "every card tells its NUMA node on a machine with several",
    "Ranks are bound to the CPUs next to their card; where the firmware does not say, they are not bound "
    "and run slower.",
    "https://github.com/verl-project/verl/pull/5627",
)
def numa(machine: Machine) -> Finding:
    from xpu_shim.intel.stack import numa_nodes

    if not machine.cards:
        return skipped("no discrete Intel GPU")
    nodes = numa_nodes(machine.sysfs)
    if len(nodes) < 2:
        return skipped("one NUMA node" if nodes else "sysfs shows no NUMA nodes")
    unknown = [gpu for gpu in machine.cards if gpu.numa_node is None]
    if not unknown:
        return ok(_listed(f"{gpu.node}: node {gpu.numa_node}" for gpu in machine.cards))
    return warning(
        _listed(describe(gpu) for gpu in unknown) + f" tell none; the machine has {len(nodes)}",
        "numactl --hardware && sudo dmidecode -t slot   # a BIOS update often adds it; else bind with "
        "numactl --cpunodebind",
    )
