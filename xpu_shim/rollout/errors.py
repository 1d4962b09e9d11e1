"""Errors that survive the way from a vLLM process to the driver."""

from __future__ import annotations

import pickle


def portable(error: Exception) -> Exception:
    """`error` itself if it can be sent to another process, else a ValueError or RuntimeError with its type and text."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        kind = ValueError if isinstance(error, ValueError) else RuntimeError
        return kind(f"{type(error).__name__}: {error}")
