"""verl's model configs default to sdpa instead of flash_attention_2."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.attention_default",
    targets=("verl.workers.config.model:HFModelConfig.__post_init__",),
    why=(
        "verl asks for flash_attention_2 where the user chose nothing. flash-attn has no XPU build, so building the "
        "model fails: `ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following "
        "error: the package flash_attn seems to be not installed`, or `ImportError: kernels is either not installed "
        "or uses an incompatible version`."
    ),
    how=(
        "Where the user chose nothing and flash-attn cannot run, a model gets what its own config.json names, or sdpa, "
        "or eager if its class has no sdpa. A choice of the user is left alone; if it cannot work, a ValueError says "
        "what will, before any weight is loaded."
    ),
    upstream=("https://github.com/volcengine/verl/issues/6057",),
    remove_when="verl asks transformers (attn_implementation=None) where the user chose nothing.",
    versions={"verl": ("0.7.1", "0.10")},
)

SETTING = "actor_rollout_ref.model.override_config.attn_implementation (or critic.model…, model… in SFT)"


def apply(install: Install) -> None:
    install.replace("HFModelConfig.__post_init__", choose)


def choose(original):
    def __post_init__(self):
        from xpu_shim.models import attention

        overrides = self.override_config
        chosen = overrides.get("attn_implementation") if overrides else None
        if chosen is not None:
            attention.check_choice(chosen, SETTING)
            return original(self)
        if attention.flash_runs_here():
            return original(self)
        # The dataclass is frozen, and a plain assignment to a field would raise.
        object.__setattr__(self, "override_config", attention.WithDefault(overrides, "sdpa"))
        try:
            original(self)
        finally:
            object.__setattr__(self, "override_config", overrides)
        wanted = attention.default_for(self.hf_config, self.local_hf_config_path)
        if wanted != "sdpa":
            self.hf_config._attn_implementation = wanted

    return __post_init__
