"""Run as a program: vLLM's own asynchronous client, and calls its engine does not answer, as JSON.

    python pending_calls.py client RELEASE_FOLDER   the client's reading task alone, on real sockets
    python pending_calls.py engine MODEL_FOLDER     a real engine whose process ends in the middle of a call

Stdout's last line is name to outcome: the error of a call, or "waits" if it had none after `PATIENCE` seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

#: Seconds until a call counts as one that waits for ever: what a socket says is heard at once, a death in about a second.
PATIENCE = {"client": 3, "engine": 10}


async def outcome(call, patience: float) -> str:
    call = asyncio.ensure_future(call)
    if not (await asyncio.wait([call], timeout=patience))[0]:
        return "waits"
    error = call.exception()
    return repr(call.result()) if error is None else type(error).__name__


async def client(patience: float) -> dict:
    """Two calls wait when the engine says that it is dead, when the client is shut down, when an answer is garbage."""
    import zmq
    import zmq.asyncio
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.engine.core_client import AsyncMPClient, BackgroundResources
    from vllm.v1.serial_utils import MsgpackDecoder

    outcomes = {}
    for name in ("dead", "shut down", "garbage", "called later"):
        context = zmq.asyncio.Context()
        answers, engine = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        engine.connect(f"tcp://127.0.0.1:{answers.bind_to_random_port('tcp://127.0.0.1')}")
        this = AsyncMPClient.__new__(AsyncMPClient)
        this.resources = BackgroundResources(ctx=context, output_socket=answers)
        this.decoder, this.outputs_queue = MsgpackDecoder(EngineCoreOutputs), asyncio.Queue()
        this.utility_results = {number: asyncio.get_running_loop().create_future() for number in (1, 2)}
        first, second = this.utility_results.values()
        this._ensure_output_queue_task()
        await asyncio.sleep(0.1)
        if name == "dead":
            await engine.send(EngineCoreProc.ENGINE_CORE_DEAD)
        elif name == "shut down":
            this.resources.output_queue_task.cancel()
        else:
            await engine.send_multipart([b"\xc1", b""])
        if name == "called later":
            await asyncio.wait([this.resources.output_queue_task])
            first = second = this.utility_results[3] = asyncio.get_running_loop().create_future()
            this._ensure_output_queue_task()
        outcomes[name] = sorted(set(await asyncio.gather(outcome(first, patience), outcome(second, patience))))
        context.destroy(0)
    return outcomes


class Extension:
    """What the engine's worker can be told."""

    def end(self, how: str) -> None:
        if how == "exits":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)


async def engine(patience: float, model: str) -> dict:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    outcomes = {}
    for how in ("exits", "is killed"):
        llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=model,
                dtype="float32",
                enforce_eager=True,
                max_model_len=64,
                max_num_seqs=2,
                skip_tokenizer_init=True,
                worker_extension_cls="pending_calls.Extension",
            )
        )
        outcomes[f"{how}, call in hand"] = await outcome(llm.collective_rpc("end", args=(how,)), patience)
        outcomes[f"{how}, later call"] = await outcome(llm.collective_rpc("end", args=(how,)), patience)
        llm.shutdown()
    return outcomes


def main(what: str, argument: str) -> dict:
    if what == "client" and argument:
        sys.path.insert(0, argument)
    import verl  # noqa: F401  arms the shim

    from xpu_shim.core import ledger

    patience = PATIENCE[what]
    result = asyncio.run(client(patience) if what == "client" else engine(patience, argument))
    return {**result, "state": ledger.record("vllm.pending_calls").state}


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(*sys.argv[1:])) + "\n")
