"""verl's value-head loader with another attention implementation than the one written into it."""

from __future__ import annotations

import types
from typing import Any

from xpu_shim.models import attention

HARDCODED = "flash_attention_2"


def is_hardcoded(loader: types.FunctionType) -> bool:
    """Whether the loader has flash_attention_2 written into it."""
    return HARDCODED in loader.__code__.co_consts


def with_attention(loader: types.FunctionType, name: str | None) -> types.FunctionType:
    """The same function with `name` in place of the hardcoded attention implementation.

    Its code object is reused with one constant exchanged. Intercepting `from_pretrained` while it runs would also catch
    other threads' calls, and a copy of it would miss what upstream changes next.
    """
    constants = tuple(name if constant == HARDCODED else constant for constant in loader.__code__.co_consts)
    clone = types.FunctionType(
        loader.__code__.replace(co_consts=constants),
        loader.__globals__,
        loader.__name__,
        loader.__defaults__,
        loader.__closure__,
    )
    clone.__kwdefaults__ = loader.__kwdefaults__
    return clone


def attention_of(config: Any, path: str) -> str | None:
    """What a critic gets: what its config was given, or the default where that is a flash-attn which cannot run.

    Args:
        config: the critic's transformers config; verl put the user's choice or its own default into it.
        path: the local checkpoint folder.
    """
    chosen = getattr(config, "_attn_implementation", None)
    if chosen is None or (attention.is_flash(chosen) and not attention.may_run(chosen)):
        return attention.default_for(config, path)
    return chosen


def explain(error: RuntimeError) -> RuntimeError:
    """verl's "please install trl" with the reason for which transformers could not load the model.

    Raises:
        BaseException: the cause itself if it is none that another loader could help with (an interrupt).
    """
    cause = error.__cause__
    if cause is None:
        return error
    if not isinstance(cause, Exception):
        raise cause
    return RuntimeError(f"{error}. transformers could not load it with a value head: {type(cause).__name__}: {cause}")
