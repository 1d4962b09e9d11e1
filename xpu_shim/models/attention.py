"""Which attention implementation a model gets where nobody chose one and flash-attn cannot run."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from xpu_shim.core.log import logger, warn_once

#: What PyTorch brings along; flex_attention also needs a working torch.compile, so it is taken but never recommended.
WITHOUT_PACKAGE = ("sdpa", "eager", "flex_attention")

_log = logger("xpu_shim.models")


class AttentionChoiceError(ValueError):
    """The attention implementation that was asked for cannot run here; the message says which can."""


def is_flash(name: Any) -> bool:
    """Whether `name` is one of transformers' flash attention names ("flash_attention_2", …)."""
    return isinstance(name, str) and re.fullmatch(r"flash_attention_\d", name) is not None


def flash_runs_here(name: str = "flash_attention_2") -> bool:
    """Whether transformers would run this flash attention from an installed package on this machine.

    The package being importable is not enough: transformers uses flash-attn's own kernels on CUDA, MLU and MUSA only.
    """
    from transformers import utils

    check = getattr(utils, f"is_flash_attn_{name[-1]}_available", None)
    return bool(check is not None and check())


def hub_kernels_are_installed() -> bool:
    """Whether transformers may replace a missing flash-attn by a kernel it downloads (package `kernels`)."""
    from transformers import utils

    return bool(getattr(utils, "is_kernels_available", lambda: False)())


def may_run(name: Any) -> bool:
    """Whether nothing that is installed here rules this implementation out."""
    return not is_flash(name) or flash_runs_here(name) or hub_kernels_are_installed()


def check_choice(name: Any, setting: str) -> None:
    """Accept an explicit choice or say why it cannot work.

    Args:
        name: the implementation asked for, as transformers names it.
        setting: where it was asked for, for the message.

    Raises:
        AttentionChoiceError: if it needs a flash-attn that cannot run here and no hub kernel can take its place.
    """
    if may_run(name):
        return
    raise AttentionChoiceError(
        f"{setting}={name} cannot run here: the flash-attn package does not run on XPU, and the package `kernels`, "
        "with which transformers fetches an XPU build of it, is missing or too old. Use sdpa or eager, or leave the "
        "setting out: the default on XPU is sdpa."
    )


def named_in_file(path: str | None) -> str | None:
    """The implementation a checkpoint's own `config.json` names, or None."""
    try:
        with open(os.path.join(path or "", "config.json"), encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return None
    name = content.get("attn_implementation") or content.get("_attn_implementation")
    return name if isinstance(name, str) else None


def supports_sdpa(config: Any) -> bool | None:
    """Whether the model class of a transformers config has sdpa; None if the class is not part of transformers."""
    import transformers

    names = getattr(config, "architectures", None) or ()
    if getattr(config, "auto_map", None) or not names:
        return None
    model = getattr(transformers, names[0], None)
    return getattr(model, "_supports_sdpa", None)


def default_for(config: Any, path: str | None) -> str | None:
    """What a model gets if the user chose nothing and flash-attn cannot run.

    Args:
        config: the model's transformers config.
        path: the local folder it was read from.

    Returns:
        What the checkpoint's config.json names if that can run; else "sdpa", or "eager" for a class without sdpa. None
        leaves it to transformers, for model code that comes with the checkpoint.
    """
    named = named_in_file(path)
    if named in WITHOUT_PACKAGE:
        return named
    if named is not None:
        warn_once(
            f"{path}/config.json names attn_implementation={named}, which needs a package that does not run on XPU; "
            "using sdpa. Set override_config.attn_implementation to choose another."
        )
    has_sdpa = supports_sdpa(config)
    _log.info("attention of %s: nobody chose; the class has sdpa: %s", path, has_sdpa)
    return {True: "sdpa", False: "eager", None: None}[has_sdpa]


def default_for_folder(path: str, trust_remote_code: bool) -> str | None:
    """`default_for` the checkpoint in a local folder."""
    from transformers import AutoConfig

    return default_for(AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code), path)


class WithDefault(dict):
    """A config's overrides in which `attn_implementation` has another default.

    verl asks with `get("attn_implementation", "flash_attention_2")` and then writes every key it finds into the model's
    config. Answering the question without holding the key keeps it out of the config.json of saved checkpoints.
    """

    def __init__(self, content: Any, attention: str | None) -> None:
        super().__init__(content or {})
        self._attention = attention

    def get(self, key: Any, default: Any = None) -> Any:
        if key == "attn_implementation":
            default = self._attention
        return super().get(key, default)
