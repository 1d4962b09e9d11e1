"""verl 0.7.1's first generation of workers: attention, packing and compilation as in the engines."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.attention_legacy_workers",
    targets=(
        "verl.workers.fsdp_workers:ActorRolloutRefWorker._build_model_optimizer",
        "verl.workers.fsdp_workers:CriticWorker._build_critic_model_optimizer",
        "verl.workers.actor.dp_actor:DataParallelPPOActor.__init__",
        "verl.workers.critic.dp_critic:DataParallelPPOCritic.__init__",
    ),
    why=(
        "These workers, the default in 0.7.1, read their configs themselves and do what the engines do: they ask for "
        "flash_attention_2 where the user chose nothing (`ImportError: FlashAttention2 has been toggled on, but it "
        "cannot be used`), compile the entropy (`InductorError: RuntimeError: 0 active drivers ([])`), pack whatever "
        "the attention does with packed sequences, and accept sequence parallelism without flash attention."
    ),
    how=(
        "What verl.attention_default, verl.attention_packing and verl.compile_entropy do for the engines, at the "
        "places where these workers decide it."
    ),
    remove_when="verl 0.7.1 is no longer supported.",
    versions={"verl": ("0.7.1", "0.8")},
    processes=("driver", "worker"),
)


def apply(install: Install) -> None:
    name = install.module.__name__.rpartition(".")[2]
    if name == "fsdp_workers":
        install.replace("ActorRolloutRefWorker._build_model_optimizer", build_actor)
        install.replace("CriticWorker._build_critic_model_optimizer", build_critic)
    elif name == "dp_actor":
        install.replace("DataParallelPPOActor.__init__", start_actor)
    else:
        install.replace("DataParallelPPOCritic.__init__", start_critic)


def build_actor(original):
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


def build_critic(original):
    def _build_critic_model_optimizer(self, config):
        from xpu_shim.models import attention

        chosen = (config.model.get("override_config") or {}).get("attn_implementation")
        if chosen is not None:
            attention.check_choice(chosen, "critic.model.override_config.attn_implementation")
        # A default that cannot run is replaced by the loader (verl.critic_attention).
        return original(self, config)

    return _build_critic_model_optimizer


def start_actor(original):
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        from xpu_shim.models.compilation import run_eagerly

        run_eagerly(self, "compute_entropy_from_logits", "calculate_sum_pi_squared_from_logits")
        decide(self, self.actor_module)

    return __init__


def start_critic(original):
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        decide(self, self.critic_module)

    return __init__


def decide(worker, module):
    """Packing and sequence parallelism, from the config of the model that was built (under whatever wraps it)."""
    from xpu_shim.models import packing

    config = getattr(module, "config", None)
    if config is None:
        return
    packing.check_sequence_parallel(worker.ulysses_sequence_parallel_size, config)
    if worker.use_remove_padding and not packing.may_pack(config):
        worker.use_remove_padding = False
