"""A card that is too full for vLLM says who holds it and which setting fits."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="vllm.request_memory",
    # The workers copy the name when they are imported, which is after this module was executed.
    targets=("vllm.v1.worker.utils:request_memory",),
    why=(
        "Beside a trainer memory is often really short when vLLM starts, and its message (`Free memory on device ... "
        "is less than desired GPU memory utilization`) says neither who holds the card nor what value would do."
    ),
    how=(
        "vLLM's own check runs first, with its own arguments. If it refuses, memory is read again (the trainer may "
        "have released some); if it still is short the error names the holders and the largest value that fits."
    ),
    upstream=("https://github.com/vllm-project/vllm/issues/47820",),
    remove_when="vLLM's message names the holders and a value that fits.",
    versions={"vllm": ("0.17", "0.34")},
    processes=("worker", "rollout"),
    required=False,
)


def apply(install: Install) -> None:
    install.replace("request_memory", helpful)


def helpful(original):
    def request_memory(init_snapshot, cache_config, *args, **kwargs):
        from xpu_shim.rollout import shortage

        try:
            return shortage.second_look(original, init_snapshot, cache_config, *args, **kwargs)
        except Exception as error:
            from xpu_shim.doctor.explain import explain

            explain(error)
            raise

    return request_memory
