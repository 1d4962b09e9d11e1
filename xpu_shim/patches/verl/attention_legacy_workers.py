"""verl 0.7.1's first generation of workers defaults to sdpa instead of flash_attention_2."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.attention_legacy_workers",
    targets=(
        "verl.workers.fsdp_workers:ActorRolloutRefWorker._build_model_optimizer",
        "verl.workers.fsdp_workers:CriticWorker._build_critic_model_optimizer",
    ),
    why=(
        "These workers, the default in 0.7.1, read their configs themselves and also ask for flash_attention_2 where "
        "the user chose nothing: `ImportError: FlashAttention2 has been toggled on, but it cannot be used`."
    ),
    how="The same default and the same check of a choice as in verl.attention_default.",
    remove_when="verl 0.7.1 is no longer supported.",
    versions={"verl": ("0.7.1", "0.8")},
    processes=("driver", "worker"),
)


def apply(install: Install) -> None:
    install.replace("ActorRolloutRefWorker._build_model_optimizer", actor)
    install.replace("CriticWorker._build_critic_model_optimizer", critic)


def actor(original):
    import inspect

    signature = inspect.signature(original)

    def _build_model_optimizer(*args, **kwargs):
        from xpu_shim.models import attention

        call = signature.bind(*args, **kwargs)
        overrides = call.arguments["override_model_config"]
        chosen = overrides.get("attn_implementation")
        if chosen is not None:
            attention.check_choice(chosen, "actor_rollout_ref.model.override_config.attn_implementation")
        elif not attention.flash_runs_here():
            path = call.arguments["model_path"]
            default = attention.default_for_folder(path, call.arguments.get("trust_remote_code", False))
            call.arguments["override_model_config"] = attention.WithDefault(overrides, default)
        return original(*call.args, **call.kwargs)

    return _build_model_optimizer


def critic(original):
    def _build_critic_model_optimizer(self, config):
        from omegaconf import OmegaConf

        from xpu_shim.models import attention

        chosen = OmegaConf.select(
            OmegaConf.create(dict(config.model.get("override_config") or {})), "attn_implementation"
        )
        if chosen is not None:
            attention.check_choice(chosen, "critic.model.override_config.attn_implementation")
        # Nothing else to do: the loader replaces a default that cannot run (verl.critic_attention).
        return original(self, config)

    return _build_critic_model_optimizer
