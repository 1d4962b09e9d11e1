"""A vLLM plugin for tests: something happens in a rollout's worker during the second weight sync it receives.

With this folder on PYTHONPATH every vLLM process loads it. `INJECTED_FAULT` says what happens, and in the folder
`INJECTED_FAULT_FOLDER` each worker writes a file `<pid>.json` that says what it saw and when.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

FAULTS = ("raise", "kill", "odd")

_state = {"sync": 0, "calls": 0, "kept": []}
_seen: dict = {}


def init() -> None:
    """Called by vLLM in each of its processes, once or more."""
    fault = os.environ.get("INJECTED_FAULT")
    if fault is None:
        return
    assert fault in FAULTS, f"INJECTED_FAULT={fault!r}"
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension as Extension

    if "injected" in vars(Extension):
        return
    Extension.injected = fault
    receive, load = Extension.update_weights_from_ipc, Extension._update_weights

    def update_weights_from_ipc(self, *args, **kwargs):
        _state["sync"] += 1
        _state["calls"] = 0
        result = receive(self, *args, **kwargs)
        note(syncs=_state["sync"], calls=_state["calls"])
        if fault == "odd" and _state["sync"] == 3:
            note(
                kept=len(_state["kept"]),
                changed=[name for name, tensor, copy in _state["kept"] if differ(tensor, copy)],
            )
        return result

    def _update_weights(self, weights, *args, **kwargs):
        _state["calls"] += 1
        if _state["sync"] == 2:
            globals()[fault](self, weights)
        return load(self, weights, *args, **kwargs)

    Extension.update_weights_from_ipc, Extension._update_weights = update_weights_from_ipc, _update_weights


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


def second_receiver(address, device) -> None:
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

    note(second="waiting")
    try:
        BucketedWeightReceiver(address, device, use_shm=True).receive_weights(lambda weights, is_last: None)
        note(second="served")
    except Exception as error:
        note(second=f"{type(error).__name__}: {error}")
