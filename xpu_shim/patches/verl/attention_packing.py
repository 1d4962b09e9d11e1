"""Padding is removed only where packed sequences stay apart; sequence parallelism needs a flash attention."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.attention_packing",
    targets=("verl.workers.engine.fsdp.transformer_impl:FSDPEngine._init_device_mesh",),
    why=(
        "`use_remove_padding=True`, verl's default, packs sequences into one row and relies on flash-attn to keep them "
        "apart. With sdpa or eager that depends on the model class and the transformers release; where it fails, "
        "samples see each other and training goes wrong without an error. `ulysses_sequence_parallel_size` above 1 is "
        "wrong with sdpa and eager always: every rank sees its part of a sequence only."
    ),
    how=(
        "Before the model is built, a small model of the same class is run on packed and on separate sequences; if "
        "they differ, use_remove_padding is switched off with one warning. Sequence parallelism without a flash "
        "attention raises a ValueError with the reason."
    ),
    remove_when="verl checks both itself.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker"),
)


def apply(install: Install) -> None:
    install.replace("FSDPEngine._init_device_mesh", decide)


def decide(original):
    # The first thing the constructor calls once it has its configs, and before anything costs time or memory.
    def _init_device_mesh(self):
        from xpu_shim.models import packing

        config = self.model_config.hf_config
        packing.check_sequence_parallel(self.engine_config.ulysses_sequence_parallel_size, config)
        if self.use_remove_padding and not packing.may_pack(config):
            self.use_remove_padding = False
            # The workers read it from the configs for every batch; both are frozen dataclasses.
            object.__setattr__(self.model_config, "use_remove_padding", False)
            object.__setattr__(self.engine_config, "use_remove_padding", False)
        return original(self)

    return _init_device_mesh
