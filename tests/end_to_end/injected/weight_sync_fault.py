"""Something goes wrong in the second weight sync, in a rollout's worker or in a training rank; for tests.

With this folder on PYTHONPATH every vLLM process loads it as a plugin, and with VERL_USE_EXTERNAL_MODULES every process
that imports verl. `INJECTED_FAULT` says what happens, and in the folder `INJECTED_FAULT_FOLDER` each process to which it
did writes a file `<pid>.json` that says what it saw and when.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import wrapt

#: What happens in every rollout's worker, in training rank 0, and to the workers before a rank asks for them.
IN_WORKERS, IN_RANK_0 = ("raise", "kill", "odd", "early", "leaves"), ("source_raises", "source_killed")
BEFORE = ("gone",)

_state = {"sync": 0, "calls": 0, "kept": []}
_seen: dict = {}


def init() -> None:
    """Called by vLLM in each of its processes, once or more."""
    fault = os.environ.get("INJECTED_FAULT")
    if fault is None:
        return
    assert fault in (*IN_WORKERS, *IN_RANK_0, *BEFORE), f"INJECTED_FAULT={fault!r}"
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension as Extension

    if "injected" in vars(Extension):
        return
    Extension.injected = fault
    receive, load = Extension.update_weights_from_ipc, Extension._update_weights
    if fault == "early":
        prepare_raises(Extension)

    def update_weights_from_ipc(self, *args, **kwargs):
        _state["sync"] += 1
        _state["calls"] = 0
        try:
            result = receive(self, *args, **kwargs)
        except BaseException as error:
            note(ended=time.time(), error=f"{type(error).__name__}: {error}")
            raise
        note(syncs=_state["sync"], calls=_state["calls"])
        if fault == "leaves" and _state["sync"] == 2:
            note(fault=time.time(), equal=equal_in_model())
            os._exit(0)
        if fault == "odd" and _state["sync"] == 3:
            note(
                kept=len(_state["kept"]),
                changed=[name for name, tensor, copy in _state["kept"] if differ(tensor, copy)],
            )
        return result

    def _update_weights(self, weights, *args, **kwargs):
        _state["calls"] += 1
        if _state["sync"] == 2 and fault in FROM_LOAD:
            globals()[fault](self, weights)
        return load(self, weights, *args, **kwargs)

    Extension.update_weights_from_ipc, Extension._update_weights = update_weights_from_ipc, _update_weights


def equal_in_model() -> bool:
    """Whether the last sync's weights were found in the model, by xpu-shim's own check."""
    from xpu_shim.core import ledger

    last = ledger.notes["weight_sync_receiver"][-1]
    return last["equal_to_sender"] and last["equal_in_model"] == last["tensors"]


def prepare_raises(extension) -> None:
    """What the worker does with its model before it makes a receiver fails in the second sync."""
    models = extension._iter_all_models

    def _iter_all_models(self):
        if _state["sync"] == 2:
            note(fault=time.time())
            raise RuntimeError("model not ready, injected before the second sync")
        return models(self)

    extension._iter_all_models = _iter_all_models


def note(**what) -> None:
    _seen.update(what)
    path = Path(os.environ["INJECTED_FAULT_FOLDER"]) / f"{os.getpid()}.json"
    path.with_suffix(".new").write_text(json.dumps(_seen))
    path.with_suffix(".new").replace(path)


def differ(one, other) -> bool:
    import torch

    return not torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def raise_(worker, weights) -> None:
    note(fault=time.time())
    raise ValueError("shape mismatch, injected into the second sync")


globals()["raise"] = raise_


def kill(worker, weights) -> None:
    note(fault=time.time())
    os.kill(os.getpid(), signal.SIGKILL)


def odd(worker, weights) -> None:
    """Keeps every tensor it is given, and brings a second receiver to the same address."""
    _state["kept"] += [(name, tensor, tensor.clone()) for name, tensor in weights]
    if _state["calls"] == 1:
        threading.Thread(target=second_receiver, args=(worker._get_zmq_handle(), worker.device), daemon=True).start()
        time.sleep(1)


#: Faults that happen when the worker loads a group of tensors.
FROM_LOAD = ("raise", "kill", "odd")


@wrapt.when_imported("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer")
def in_training_ranks(module) -> None:
    """The tensors that a training rank gathers for its second sync come to a bad end, or just say that they went."""
    fault = os.environ.get("INJECTED_FAULT")
    if fault not in (*IN_RANK_0, *BEFORE, "leaves"):
        return
    Sender = module.BucketedWeightSender
    send = Sender.async_send_weights

    async def async_send_weights(self, weights):
        _state["sync"] += 1
        try:
            result = await send(self, spoilt(weights, fault) if _state["sync"] == 2 else weights)
        except BaseException as error:
            note(rank=os.environ["RANK"], ended=time.time(), error=f"{type(error).__name__}: {error}")
            raise
        note(rank=os.environ["RANK"], syncs=_state["sync"])
        return result

    Sender.async_send_weights = async_send_weights


@wrapt.when_imported("verl.workers.rollout.vllm_rollout.vllm_rollout")
def before_training_ranks_call(module) -> None:
    """The rollout's workers are killed after their first sync, before a rank calls for the second."""
    if os.environ.get("INJECTED_FAULT") != "gone":
        return
    update = module.ServerAdapter.update_weights

    async def update_weights(self, *args, **kwargs):
        if _state["sync"] == 1:
            for file in Path(os.environ["INJECTED_FAULT_FOLDER"]).glob("*.json"):
                if "calls" in json.loads(file.read_text()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(file.stem), signal.SIGKILL)
            note(rank=os.environ["RANK"], fault=time.time())
        return await update(self, *args, **kwargs)

    module.ServerAdapter.update_weights = update_weights


def spoilt(weights, fault):
    for number, item in enumerate(weights):
        if fault in IN_RANK_0 and number == 10 and os.environ["RANK"] == "0":
            note(rank="0", fault=time.time())
            if fault == "source_killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("a shard could not be read, injected into the second sync")
        yield item


def second_receiver(address, device) -> None:
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

    note(second="waiting")
    try:
        BucketedWeightReceiver(address, device, use_shm=True).receive_weights(lambda weights, is_last: None)
        note(second="served")
    except Exception as error:
        note(second=f"{type(error).__name__}: {error}")
