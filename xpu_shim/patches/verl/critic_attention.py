"""The critic's loader uses the attention implementation that was chosen instead of flash_attention_2."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.critic_attention",
    targets=("verl.utils.model:load_valuehead_model",),
    why=(
        "`load_valuehead_model` asks transformers for flash_attention_2 whatever the config says, and takes every "
        "error as a sign that the model needs trl. PPO stops with `RuntimeError: model(…) is not a value head model, "
        "please install trl to make it valid`, even with attn_implementation=sdpa, and trl does not help."
    ),
    how=(
        "Calls the same loader with what the critic's config holds (or the default on XPU where that cannot run) in "
        "place of the constant, so token classifiers load without trl. If that fails, the message also has "
        "transformers' reason."
    ),
    remove_when="load_valuehead_model passes on the config's attention implementation.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker"),
)


def probe(module) -> str | None:
    from xpu_shim.models.critic import is_hardcoded

    return None if is_hardcoded(module.load_valuehead_model) else "the loader has no attention implementation in it"


def apply(install: Install) -> None:
    install.replace("load_valuehead_model", honour_config)


def honour_config(original):
    def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code):
        from xpu_shim.models import critic

        loader = critic.with_attention(original, critic.attention_of(model_config, local_path))
        try:
            return loader(local_path, torch_dtype, model_config, trust_remote_code)
        except RuntimeError as error:
            raise critic.explain(error) from error.__cause__

    return load_valuehead_model
