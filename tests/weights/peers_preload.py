"""Imported once by the fork server: what every end needs. Nothing here may start a thread."""

import peers
import upstream

upstream.load()
__all__ = ["peers"]
