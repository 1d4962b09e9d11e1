"""vLLM's allocator for Intel GPUs can be told twice to sleep or to wake."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="vllm.double_sleep",
    targets=(
        "vllm.device_allocator.xpumem:XpuMemAllocator.sleep?",
        "vllm.device_allocator.xpumem:XpuMemAllocator.wake_up?",
    ),
    why=(
        "The first releases with sleep mode on XPU do not remember what sleeps. verl sends a server to sleep again "
        "when a step ends early, and wakes weights and KV cache one after the other: memory is unmapped or mapped "
        "twice, and the process dies in the driver, or weights saved before are overwritten with garbage."
    ),
    how="Allocations that sleep are left out of a second sleep, those that do not out of a second waking.",
    upstream=(
        "https://github.com/vllm-project/vllm/pull/37149",
        "https://github.com/vllm-project/vllm/issues/36651",
    ),
    remove_when="vLLM 0.27 is no longer supported: later releases remember (`AllocationData.is_asleep`).",
    versions={"vllm": ("0.23", "0.34")},
    processes=("worker", "rollout"),
)

#: On an allocation's record: it sleeps.
ASLEEP = "_xpu_shim_asleep"


def probe(module) -> str | None:
    """Upstream is right once `sleep` asks the allocation (0.27 has the field, but only CUDA uses it)."""
    if "is_asleep" in module.XpuMemAllocator.sleep.__code__.co_names:
        return "XpuMemAllocator.sleep asks is_asleep"
    return None


def apply(install: Install) -> None:
    install.replace("XpuMemAllocator.sleep", only_awake)
    install.replace("XpuMemAllocator.wake_up", only_asleep)


def only_awake(original):
    def sleep(self, *args, **kwargs):
        with narrowed(self, lambda record: not getattr(record, ASLEEP, False)) as records:
            result = original(self, *args, **kwargs)
            for record in records.values():
                setattr(record, ASLEEP, True)
        return result

    return sleep


def only_asleep(original):
    def wake_up(self, tags=None, *args, **kwargs):
        with narrowed(self, lambda record: getattr(record, ASLEEP, False)) as records:
            result = original(self, tags, *args, **kwargs)
            for record in records.values():
                if tags is None or record.tag in tags:
                    setattr(record, ASLEEP, False)
        return result

    return wake_up


def narrowed(allocator, chosen):
    """A context in which the allocator knows the chosen records alone; its callbacks may add and remove meanwhile."""
    import contextlib

    @contextlib.contextmanager
    def context():
        everything = allocator.pointer_to_data
        records = {pointer: record for pointer, record in everything.items() if chosen(record)}
        inside = allocator.pointer_to_data = dict(records)
        try:
            yield records
        except Exception as error:
            from xpu_shim.doctor.explain import explain

            explain(error)
            raise
        finally:
            for pointer in records.keys() - inside.keys():
                everything.pop(pointer, None)  # freed meanwhile
            everything.update(inside)
            allocator.pointer_to_data = everything

    return context()
