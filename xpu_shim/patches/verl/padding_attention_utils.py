"""verl 0.7.1 to 0.9.0 take padding out of batches without flash-attn."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.padding_attention_utils",
    targets=("verl.utils.attention_utils:_get_attention_functions",),
    why=(
        "These releases take `unpad_input` and its like from flash-attn on every device but Ascend. Every PPO and GRPO "
        "batch goes through them, so the first step fails: `ModuleNotFoundError: No module named 'flash_attn'`."
    ),
    how="Where flash-attn cannot be imported, the four functions are the shim's, with the same results and gradients.",
    upstream=("https://github.com/volcengine/verl/pull/7098",),
    remove_when="verl 0.9.0 is no longer supported: 0.9.1 has a fallback of its own.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker"),
)


def probe(module) -> str | None:
    try:
        module._get_attention_functions()
    except ImportError:
        return None
    return "the functions are there without the shim"


def apply(install: Install) -> None:
    install.replace("_get_attention_functions", fall_back)


def fall_back(original):
    # A failing import searches the whole path again each time, and this is called for every batch.
    missing = False

    def _get_attention_functions():
        nonlocal missing
        from xpu_shim.models import padding

        if not missing:
            try:
                return original()
            except ImportError:
                missing = True
        return padding.functions()

    return _get_attention_functions
