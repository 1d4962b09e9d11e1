"""Speed of a weight sync: the shim beside verl's own, in one run.

    OMP_NUM_THREADS=1 python tests/benchmarks/weight_sync.py [--mib 1024] [--syncs 4] [--buckets 2048 64]

Two processes on one host. The receiver copies every tensor out of the shared memory and then loads it (copies it into a
parameter): with verl that is the `.to(device)` forced to be a copy plus the load, with the shim the reader's copy plus the
load. All memory of the model is touched before. One row per way and bucket size; "first" is the first sync of a pair of
processes, "later" the median of the others. "CPU s" is the processor time both processes spend on a later sync: on a busy
machine it says more than the clock, and half of it is the limit on two cores. The memcpy rows are the limit of memory: one
copy of the same bytes in one thread, and the three copies of a sync (in, out, load) one after the other. What a real device
adds is not measured here.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "weights"), str(HERE.parent.parent)]
TENSOR = 16 << 20


def model(mib: int, value: float) -> dict[str, torch.Tensor]:
    elements = TENSOR // 2
    return {f"layer.{i}": torch.full((elements,), value, dtype=torch.bfloat16) for i in range((mib << 20) // TENSOR)}


def setup(way: str, end: str):
    import upstream

    torch.set_num_threads(1)
    module = upstream.load()
    if way == "verl":
        upstream.force_copies()
    else:
        from xpu_shim.core.apply import apply_patch

        apply_patch(f"verl.weight_sync_{end}")
    return module


def receive(way: str, endpoint: str, mib: int, syncs: int, connection) -> None:
    module = setup(way, "receiver")
    parameters = model(mib, 0.0)

    def load(weights, is_last=None) -> None:
        for name, tensor in weights:
            parameters[name].copy_(tensor)

    connection.send("ready")
    for number in range(syncs):
        connection.recv()
        begun = time.process_time()
        module.BucketedWeightReceiver(endpoint, torch.device("cpu"), use_shm=True).receive_weights(load)
        spent = time.process_time() - begun
        connection.send((all(bool((p == number + 1).all()) for p in parameters.values()), spent))


def send(way: str, endpoint: str, mib: int, syncs: int, bucket: int, peer, result) -> None:
    module = setup(way, "sender")
    weights = model(mib, 0.0)
    seconds = []
    for number in range(syncs):
        for tensor in weights.values():
            tensor.fill_(number + 1)
        peer.send("go")
        begun, spent = time.perf_counter(), time.process_time()
        asyncio.run(
            module.BucketedWeightSender(endpoint, bucket, use_shm=True).async_send_weights(iter(weights.items()))
        )
        elapsed, spent = time.perf_counter() - begun, time.process_time() - spent
        arrived, theirs = peer.recv()
        assert arrived, "the weights did not arrive"
        seconds.append((elapsed, spent + theirs))
    result.send(seconds)


def measure(way: str, mib: int, syncs: int, bucket: int) -> list[tuple[float, float]]:
    """Of each sync: seconds, and seconds of processor time of both ends."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="ws") as directory:
        endpoint = f"ipc://{directory}/s.sock"
        one, other = context.Pipe()
        mine, theirs = context.Pipe()
        receiver = context.Process(target=receive, args=(way, endpoint, mib, syncs, one))
        receiver.start()
        assert other.poll(120)
        assert other.recv() == "ready"
        sender = context.Process(target=send, args=(way, endpoint, mib, syncs, bucket, other, theirs))
        sender.start()
        if not mine.poll(600):
            sender.kill()
            receiver.kill()
            raise SystemExit(f"{way} with a bucket of {bucket} MB did not end")
        seconds = mine.recv()
        sender.join(30)
        receiver.join(30)
        return seconds


def memcpy(mib: int, copies: int) -> float:
    torch.set_num_threads(1)
    buffers = [torch.zeros(mib << 20, dtype=torch.uint8) for _ in range(2)]
    times = []
    for _ in range(4):
        begun = time.perf_counter()
        for _ in range(copies):
            buffers[1].copy_(buffers[0])
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--syncs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2, help="how often both ways are measured, in turn")
    parser.add_argument("--buckets", type=int, nargs="+", default=[2048, 64])
    arguments = parser.parse_args()
    gib = arguments.mib / 1024
    print(f"{arguments.mib} MiB of bfloat16 in tensors of {TENSOR >> 20} MiB, GiB/s (higher is better)")
    print(f"{'':24}{'first':>8}{'later':>8}{'first/verl':>12}{'later/verl':>12}{'CPU s':>8}")
    for copies in (1, 3):
        seconds = memcpy(arguments.mib, copies)
        print(f"{f'memcpy x{copies}':24}{'':8}{gib / seconds:8.2f}")
    for bucket in arguments.buckets:
        rows: dict[str, list[list[tuple[float, float]]]] = {"verl": [], "xpu-shim": []}
        for _ in range(arguments.rounds):
            for way, runs in rows.items():
                runs.append(measure(way, arguments.mib, arguments.syncs, bucket))
        first = {way: statistics.median(run[0][0] for run in runs) for way, runs in rows.items()}
        later = {way: statistics.median(s for run in runs for s, _ in run[1:]) for way, runs in rows.items()}
        spent = {way: statistics.median(c for run in runs for _, c in run[1:]) for way, runs in rows.items()}
        for way in rows:
            ratios = (
                f"{first['verl'] / first[way]:12.1f}{later['verl'] / later[way]:12.1f}" if way != "verl" else 24 * " "
            )
            print(
                f"{f'{way}, {bucket} MB bucket':24}{gib / first[way]:8.2f}{gib / later[way]:8.2f}{ratios}{spent[way]:8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
