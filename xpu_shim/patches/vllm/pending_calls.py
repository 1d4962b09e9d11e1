"""A call that an engine has not answered fails when the engine dies."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="vllm.pending_calls",
    targets=("vllm.v1.engine.core_client:AsyncMPClient._ensure_output_queue_task",),
    why=(
        "A rollout that dies while it sleeps, wakes up or takes weights never answers that call. vLLM notices the death "
        "(`EngineDeadError` in its log) and fails the requests for tokens and every later call, but not the calls that are "
        "already waiting for an answer: verl's server, and with it the trainer, waits for ever."
    ),
    how="When the task that reads the engine's answers ends, the calls that still wait fail with EngineDeadError.",
    upstream=("https://github.com/vllm-project/vllm/blob/main/vllm/v1/engine/core_client.py",),
    remove_when="vLLM fails the pending utility calls of a dead engine.",
    versions={"vllm": ("0.17", "0.34")},
)

#: On a client: the task whose end is watched.
WATCHED = "_xpu_shim_watched_task"


def apply(install: Install) -> None:
    install.replace("AsyncMPClient._ensure_output_queue_task", watched)


def watched(original):
    def _ensure_output_queue_task(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        task = self.resources.output_queue_task
        # A task that ended before this call was made gets another callback: it fails this call as well.
        if task is not None and (task.done() or getattr(self, WATCHED, None) is not task):
            setattr(self, WATCHED, task)
            task.add_done_callback(failing(self.utility_results))
        return result

    return _ensure_output_queue_task


def failing(calls):
    """A callback that fails the futures in `calls`; it must not hold the client, whose end is what vLLM cleans up on."""

    def nobody_answers(_task) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        while calls:
            _, future = calls.popitem()
            if not future.done():
                future.set_exception(EngineDeadError())

    return nobody_answers
