"""verl's own attention of Qwen2-VL, Qwen2.5-VL and GLM-4V works without flash-attn."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.vlm_flash_functions",
    targets=(
        "verl.models.transformers.qwen2_vl:_custom_flash_attention_forward?",
        "verl.models.transformers.qwen2_vl:flash_attn_func?",
        "verl.models.transformers.qwen2_vl:flash_attn_varlen_func?",
        "verl.models.transformers.qwen2_vl:_flash_supports_window_size?",
        "verl.models.transformers.qwen2_vl:_flash_supports_deterministic?",
        "verl.models.transformers.qwen2_vl:_flash_use_top_left_mask?",
        "verl.models.transformers.glm4v:_custom_flash_attention_forward?",
        "verl.models.transformers.glm4v:flash_attn_func?",
        "verl.models.transformers.glm4v:flash_attn_varlen_func?",
        "verl.models.transformers.glm4v:_flash_supports_window_size?",
        "verl.models.transformers.glm4v:_flash_supports_deterministic?",
        "verl.models.transformers.glm4v:_flash_use_top_left_mask?",
    ),
    why=(
        "With use_remove_padding verl replaces these models' attention by its own, which needs names that are bound "
        "only where flash-attn or Ascend is: `NameError: name '_flash_use_top_left_mask' is not defined` in the first "
        "forward."
    ),
    how="The names are bound to functions of the same semantics on PyTorch's scaled dot product attention.",
    upstream=("https://github.com/volcengine/verl/pull/7917",),
    remove_when="verl's attention of these models goes through transformers' attention interface.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker"),
    required=False,
)


def apply(install: Install) -> None:
    from xpu_shim.models import flash

    if "flash_attn_varlen_func" in vars(install.module):
        install.retire("flash-attn is there")
    install.add("flash_attn_func", flash.flash_attn_func)
    install.add("flash_attn_varlen_func", flash.flash_attn_varlen_func)
    install.add("_flash_supports_window_size", True)
    install.add("_flash_supports_deterministic", True)
    install.add("_flash_use_top_left_mask", False)
    # Two functions of transformers that these modules import. No targets: their signatures differ between
    # transformers releases, and only verl's use of them matters. Only these modules' names change, even if late.
    install.late = False
    install.replace("_flash_attention_forward", lambda original: calling(flash.flash_attention_forward))
    install.replace("fa_peft_integration_check", lambda original: calling(flash.one_dtype))


def calling(function):
    """A function of its own: what is installed takes over the original's name and carries the patch's marker."""

    def replacement(*args, **kwargs):
        return function(*args, **kwargs)

    return replacement
