"""What can go wrong in a weight sync. All are picklable, so that Ray can carry them to the driver."""

from __future__ import annotations


class WeightSyncError(RuntimeError):
    """A weight sync ended without success; base of all errors raised here."""


class WeightSyncSettingError(ValueError):
    """A `XPU_SHIM_WEIGHT_SYNC_…` variable has a value that is not allowed; raised when the sync starts."""


class PeerFailed(WeightSyncError):
    """The other end raised. The message holds its error; the attributes hold the parts.

    Attributes:
        peer_type: name of the exception class at the other end.
        peer_message: its text.
        peer_traceback: its formatted traceback.
        tensor: name of the tensor that was being handled, or "".
        offset: bytes of the weight stream before that tensor.
    """

    peer_type: str = ""
    peer_message: str = ""
    peer_traceback: str = ""
    tensor: str = ""
    offset: int = 0

    @classmethod
    def from_report(cls, peer: str, report: dict) -> PeerFailed:
        """Build the error from what the other end reported (see `wire.report`)."""
        where = f" at tensor {report['tensor']!r}, byte offset {report['offset']}" if report.get("tensor") else ""
        error = cls(
            f"weight sync failed in the {peer}{where}: {report['type']}: {report['message']}\n"
            f"--- traceback of the {peer} ---\n{report['traceback'].rstrip()}"
        )
        error.peer_type, error.peer_message = report["type"], report["message"]
        error.peer_traceback = report["traceback"]
        error.tensor, error.offset = report.get("tensor", ""), int(report.get("offset", 0))
        return error


class PeerDied(WeightSyncError):
    """The process at the other end is gone, or closed its end without a word."""


class PeerSilent(WeightSyncError):
    """The other end is alive but nothing came from it within `XPU_SHIM_WEIGHT_SYNC_TIMEOUT` seconds."""


class PeerRefused(WeightSyncError):
    """The sender at this address already serves another receiver."""


class UnsendableTensor(WeightSyncError):
    """A tensor has no bytes to send (sharded, sparse, quantised with side data, on the meta device) or, with a peer
    that lacks xpu-shim, does not fit into its bucket."""


class WeightsDiffer(WeightSyncError):
    """With `XPU_SHIM_WEIGHT_SYNC_VERIFY=1`: weights were changed between the trainer and the model that is served."""


class Interrupted(WeightSyncError):
    """This end was told to stop while it waited (its task was cancelled, or its other thread failed)."""
