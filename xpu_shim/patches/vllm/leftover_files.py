"""vLLM's sockets and ring buffers go when its processes are killed."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="vllm.leftover_files",
    targets=(
        "vllm.utils.network_utils:get_open_zmq_ipc_path",
        "vllm.distributed.device_communicators.shm_broadcast:ShmRingBuffer.__init__",
        "vllm.distributed.device_communicators.shm_object_storage:SingleWriterShmRingBuffer.__init__",
        "vllm.distributed.device_communicators.shm_tensor_arena:ShmTensorArena.__init__?",
    ),
    why=(
        "Ray ends a rollout with SIGKILL, and so does whoever interrupts a run twice. vLLM then leaves its sockets in the "
        "temporary folder (named by a uuid) and, where a rollout has several cards, its ring buffers in /dev/shm (`psm_...`, "
        "160 MB of address space and more each): one set for each run."
    ),
    how="A shell that outlives the process, in a session of its own, removes the files that process has made.",
    upstream=("https://github.com/vllm-project/vllm/blob/main/vllm/utils/network_utils.py",),
    remove_when="vLLM's files go with its processes.",
    versions={"vllm": ("0.17", "0.34")},
    required=False,
)


def apply(install: Install) -> None:
    for target in PATCH.targets_in(install.module.__name__):
        install.replace(
            target.qualname, remembered_socket if target.qualname == "get_open_zmq_ipc_path" else remembered_segment
        )


def remembered_socket(original):
    def get_open_zmq_ipc_path(*args, **kwargs):
        address = original(*args, **kwargs)
        if address.startswith("ipc:///"):
            from xpu_shim.core.leftovers import remove_after_death

            remove_after_death(address.removeprefix("ipc://"))
        return address

    return get_open_zmq_ipc_path


def remembered_segment(original):
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        # Who opens another's segment leaves its removal to that one.
        creates = getattr(self, "is_creator", None) or getattr(self, "is_writer", None)
        segment = getattr(self, "shared_memory", None)
        if creates and segment is not None:
            from xpu_shim.core.leftovers import remove_after_death

            remove_after_death(f"/dev/shm/{segment.name.lstrip('/')}")

    return __init__
