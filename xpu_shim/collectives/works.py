"""A Work with one more step: what has to happen to the result when the collective is done."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Work

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta


class FinishingWork(Work):
    """A native Work and a step that runs exactly once, when somebody first learns that the collective is done.

    Whichever way the caller learns it (`wait`, `synchronize`, `is_completed`, `result`, a future), the step has been
    run (on a device: enqueued after the collective) by then. Asking again changes nothing, which gloo's own averaging
    Work does not promise.
    """

    def __init__(
        self,
        inner: Any,
        outputs: list[torch.Tensor] | None,
        finish: Callable[[], object],
        device: torch.device,
    ) -> None:
        """Wrap `inner`.

        Args:
            inner: the `torch.distributed.Work` of the collective.
            outputs: what the collective fills, for `result` and the future; None to leave both to `inner`.
            finish: the step.
            device: the xpu device of the tensors.
        """
        super().__init__()
        self._inner, self._outputs, self._device = inner, outputs, device
        self._finish: Callable[[], object] | None = finish
        self._lock = threading.Lock()
        self._future: Any = None
        #: On a device: when the step is through, for a stream other than the one it was enqueued on.
        self._done: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the collective and the step.

        Raises:
            RuntimeError: what the collective's own wait raises.
        """
        # Once finished, the collective's Work is left alone: gloo's copy the result again at each further wait, over
        # what the step made of it.
        if self._finish is not None and not (self._inner.wait() if timeout is None else self._inner.wait(timeout)):
            return False
        self._complete()
        return True

    def synchronize(self) -> None:
        """As `wait`, for the current stream only."""
        if self._finish is not None:
            self._inner.synchronize()
        self._complete()

    def block_current_stream(self) -> None:
        """As `wait`, without blocking the host."""
        if self._finish is not None:
            self._inner.block_current_stream()
        self._complete()

    def is_completed(self) -> bool:
        """Whether the result may be read."""
        if not self._inner.is_completed():
            return False
        self.wait()
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the outputs; done when collective and step are."""
        if self._future is None:
            self._future = self._inner.get_future().then(self._on_future)
        return self._future

    def result(self) -> list[torch.Tensor]:
        """The outputs, after waiting."""
        self.wait()
        return self._inner.result() if self._outputs is None else list(self._outputs)

    def is_success(self) -> bool:
        """Whether the collective succeeded."""
        return self._inner.is_success()

    def exception(self) -> Any:
        """What the collective failed with, or None."""
        return self._inner.exception()

    def source_rank(self) -> int:
        """See `torch.distributed.Work.source_rank`."""
        return self._inner.source_rank()

    def _source_rank(self) -> int:
        return self._inner._source_rank()

    def get_future_result(self) -> Any:
        """See `torch.distributed.Work.get_future_result`."""
        return self._inner.get_future_result()

    def _get_op_type(self) -> Any:
        return self._inner._get_op_type()

    def _get_duration(self) -> float:
        return self._inner._get_duration()

    def _on_future(self, future: torch.futures.Future[Any]) -> list[torch.Tensor]:
        value = future.value()  # a failed collective must fail our future too
        self._complete()
        return value if self._outputs is None else list(self._outputs)

    def _complete(self) -> None:
        self._run()
        if self._done is not None:
            torch.xpu.current_stream(self._device).wait_event(self._done)

    def _run(self) -> None:
        # A lock and not a flag alone: a future's callback comes from the backend's thread.
        with self._lock:
            if self._finish is not None:
                self._finish()
                self._finish = None
                self._done = torch.xpu.current_stream(self._device).record_event()
