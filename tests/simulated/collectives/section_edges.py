"""What a table of routes does not show: dtypes without an average, Works, autograd, counters, settings."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from context import counted, describe, patched

if TYPE_CHECKING:
    from context import Context

AVG, MAX, SUM = dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.SUM

#: This rank; set by `rows`.
c: Any = None

CHECKS: dict[str, Callable[[], Any]] = {}


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    """Enter a function in the report under its name; what it returns is compared by the test."""
    CHECKS[function.__name__] = function
    return function


def rows(context: Context) -> dict[str, Any]:
    """Check to `value` or `error`, with the patches on."""
    global c
    c = context
    report: dict[str, Any] = {
        "premultiplied_off": outcome(premultiplied),
        "settings": settings(),
        "retirement": outcome(retirement),
    }
    with patched():
        for name, function in CHECKS.items():
            report[name] = outcome(function)
    return report


def outcome(function: Callable[[], Any]) -> dict[str, Any]:
    counted()
    try:
        row = {"value": function()}
    except Exception as error:
        row = {"error": describe(error)}
    dist.barrier(group=c.cpu_group)
    return row


def xpu(*numbers: float, dtype: torch.dtype | None = None) -> torch.Tensor:
    """These numbers times (rank + 1)."""
    return torch.tensor(numbers, dtype=dtype, device=c.device("xpu")) * (c.rank + 1)


# Numbers


@check
def half_precision_without_overflow() -> list[float]:
    """60000 on every rank: the sum is no float16, the average is."""

    def full(count: int) -> torch.Tensor:
        return torch.full((count,), 60000.0, dtype=torch.float16, device=c.device("xpu"))

    reduced, to_one, output = full(2), full(2), full(2)
    dist.all_reduce(reduced, AVG)
    dist.reduce(to_one, 0, AVG)
    dist.reduce_scatter_tensor(output, full(2 * c.ranks), AVG)
    return [
        reduced[0].item(),
        to_one[0].item(),
        output[0].item(),
        funcol.all_reduce(full(2), "avg", c.group)[0].item(),
        funcol.wait_tensor(funcol.reduce_scatter_tensor(full(2 * c.ranks), "avg", 0, c.group))[0].item(),
    ]


@check
def integers_truncate() -> list[int]:
    """Sums of -3, 3, 7 over two ranks' 1x and 2x multiples, halved towards zero."""
    tensor = xpu(-3, 3, 7)
    dist.all_reduce(tensor, AVG)
    return tensor.tolist()


@check
def premultiplied() -> list[float]:
    """PREMUL_SUM with a factor of each rank's own, in all three kinds of collective, and with a tensor as factor."""
    factor = [0.5, 0.25][c.rank]
    results = []
    for value in (factor, torch.tensor(factor, device=c.device("xpu"))):
        op = getattr(dist.ReduceOp, "PREMUL_SUM", None)
        op = op(value) if callable(op) else dist._make_nccl_premul_sum(value)
        reduced, to_one, output = xpu(4.0), xpu(4.0), xpu(0.0)
        dist.all_reduce(reduced, op)
        dist.reduce(to_one, 1, op)
        dist.reduce_scatter_tensor(output, xpu(*[4.0] * c.ranks), op)
        results += [reduced.item(), to_one.item() if c.rank == 1 else 4.0, output.item()]
    return results


@check
def refused_dtypes() -> dict[str, str]:
    answers = {}
    for dtype in (torch.bool, torch.float8_e4m3fn):
        tensor = torch.ones(2, device=c.device("cpu")).to(dtype).to(c.device("xpu"))
        try:
            dist.all_reduce(tensor, AVG)
        except TypeError as error:
            answers[str(dtype)] = str(error)
    return answers


@check
def failed_call_leaves_the_tensor() -> list[Any]:
    """A backend that refuses the call: an average that never happened must not have divided."""
    from xpu_shim.collectives import process_group, requests

    def refusing(group: Any, tensors: Any, options: Any) -> None:
        raise RuntimeError(f"refused {options.reduceOp == SUM}")

    tensor, options = xpu(6.0, 10.0), dist.AllreduceOptions()
    options.reduceOp = AVG
    try:
        process_group.reduction(requests.FORMS[0], averages=True)(refusing)(c.group, [tensor], options)
    except RuntimeError as error:
        return [str(error), options.reduceOp == AVG, *(tensor / (c.rank + 1)).tolist()]
    return ["it did not fail"]


@check
def wrong_arguments_are_torch_errors() -> list[str]:
    answers = []
    for arguments in ((), (xpu(1.0), "avg"), ([xpu(1.0)], AVG, "soon")):
        try:
            c.group.allreduce(*arguments)
        except TypeError as error:
            answers.append(str(error).splitlines()[0])
    return answers


@check
def backend_called_directly() -> list[Any]:
    """Past the process group: the backend object itself."""
    backend = c.group._get_backend(c.device("xpu"))
    tensor, options = xpu(1.0), dist.AllreduceOptions()
    options.reduceOp = AVG
    counted()
    backend.allreduce([tensor], options).wait()
    output, scatter = xpu(0.0), dist.ReduceScatterOptions()
    scatter.reduceOp = AVG
    backend._reduce_scatter_base(output, xpu(*[1.0] * c.ranks), scatter).wait()
    largest = xpu(1.0)
    options.reduceOp = MAX
    backend.allreduce([largest], options).wait()
    return [tensor.item(), output.item(), largest.item(), "all_reduce:avg" in counted()]


@check
def functional_with_reduce_op_objects() -> list[Any]:
    """As torch 2.15 passes operations to the kernels: objects and enum values, also a scaled sum."""
    from xpu_shim.collectives import functional

    ops = torch.ops._c10d_functional
    name = c.group.group_name
    premultiplied_op = getattr(dist.ReduceOp, "PREMUL_SUM", None)
    half = premultiplied_op(0.5) if callable(premultiplied_op) else dist._make_nccl_premul_sum(0.5)
    results: list[Any] = []
    for op in (AVG, dist.ReduceOp(AVG), half):
        tensor = xpu(4.0)
        functional.reduce_in_place([tensor], op, name, "test", lambda given, to: ops.all_reduce_(given[0], to, name))
        run = lambda given, to: [ops.reduce_scatter_tensor(given[0], to, c.ranks, name)]  # noqa: E731
        scattered = functional.reduce_and_scatter([xpu(*[4.0] * c.ranks)], op, name, "test", run, run)
        results += [funcol.wait_tensor(tensor).item(), funcol.wait_tensor(scattered[0]).item()]
    boxed = torch.classes.c10d.ReduceOp()  # a sum
    names = [functional.operation(op) for op in ("MAX", MAX, dist.ReduceOp(MAX), boxed, half)]
    return [*results, *names]


@check
def methods_pickle() -> bool:
    import pickle

    method = dist.ProcessGroup.allreduce
    return pickle.loads(pickle.dumps(method)) is method


# Autograd


@check
def autograd_does_not_notice() -> dict[str, Any]:
    """A leaf that requires grad, a tensor saved for backward, an inference tensor: as with a native AVG."""
    leaf = xpu(2.0).requires_grad_()
    dist.all_reduce(leaf, AVG)
    source = xpu(2.0).requires_grad_()
    saved = source * 3
    loss = saved.square().sum()
    before = saved._version
    dist.all_reduce(saved, AVG)
    version = saved._version - before
    loss.backward()
    with torch.inference_mode():
        inferred = xpu(2.0)
    dist.all_reduce(inferred, AVG)
    return {"leaf": leaf.item(), "version": version, "inference": inferred.item(), "grad": leaf.grad}


# Works


@check
def sums_keep_their_work() -> dict[str, Any]:
    """The very Work torch made, for sums, for float averages and for CPU tensors."""
    from torch.distributed.distributed_c10d import Work

    cpu = torch.ones(2)
    works = {
        "sum": dist.all_reduce(xpu(1.0), SUM, async_op=True),
        "average": dist.all_reduce(xpu(1.0), AVG, async_op=True),
        "cpu": dist.all_reduce(cpu, AVG, async_op=True),
        "cpu_maximum": dist.all_reduce(torch.ones(2), MAX, async_op=True),
    }
    for work in works.values():
        work.wait()
    return {name: type(work) is Work for name, work in works.items()}


@check
def finishing_work() -> dict[str, Any]:
    """The Work of an integer average: every way of asking, in any order, from any thread and stream."""
    seen: dict[str, Any] = {}

    def start() -> tuple[torch.Tensor, Any]:
        tensor = xpu(2, 4)
        return tensor, dist.all_reduce(tensor, AVG, async_op=True)

    tensor, work = start()
    seen["type"] = type(work).__name__
    seen["is_work"] = isinstance(work, dist.Work)
    work.wait()
    work.wait()
    seen["waited"] = tensor.tolist()
    seen["result"] = work.result()[0].tolist()
    seen["success"] = work.is_success()

    tensor, work = start()
    until = time.monotonic() + 30
    while not work.is_completed() and time.monotonic() < until:
        time.sleep(0.001)
    seen["polled"] = tensor.tolist()

    tensor, work = start()
    future = work.get_future()
    seen["future"] = future.wait()[0].tolist()
    work.wait()
    seen["future_then_wait"] = tensor.tolist()

    tensor, work = start()
    work.wait()
    seen["wait_then_future"] = work.get_future().then(lambda done: done.value()[0].tolist()).wait()

    tensor, work = start()
    threads = [threading.Thread(target=work.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    seen["threads"] = tensor.tolist()

    tensor, work = start()
    work.wait()
    with torch.xpu.stream(torch.xpu.Stream()):
        work.wait()
        seen["other_stream"] = tensor.tolist()

    tensor, work = start()
    # As functional collectives and boxed operators hand a Work around.
    again = dist.Work.unbox(work.boxed())
    again.wait()
    seen["boxed"] = tensor.tolist()
    return seen


@check
def failing_work() -> dict[str, Any]:
    """A collective that fails fails its Work and its future; the step is not run."""
    from xpu_shim.collectives.works import FinishingWork

    class Failing(dist.Work):
        def wait(self, timeout: Any = None) -> bool:
            raise RuntimeError("the link went down")

        def get_future(self) -> torch.futures.Future[Any]:
            future: torch.futures.Future[Any] = torch.futures.Future()
            future.set_exception(RuntimeError("the link went down"))
            return future

    ran: list[int] = []
    work = FinishingWork(Failing(), [], lambda: ran.append(1), c.device("xpu"))
    answer = work.get_future()
    seen = {}
    for name, ask in {"wait": work.wait, "again": work.wait, "future": answer.wait}.items():
        try:
            ask()
        except Exception as error:
            seen[name] = "the link went down" in str(error)
    return {**seen, "ran": len(ran)}


# The check of MIN and MAX


@check
def asked_once_per_group() -> list[dict[str, int]]:
    """What reaches the backend for three maxima of one group, then for the first of another; on a right stack."""
    seen = []
    group, other = (dist.new_group(list(range(c.ranks))) for _ in range(2))
    for used in (group, group, group, other):
        counted()
        dist.all_reduce(xpu(1.0), MAX, group=used)
        seen.append(counted())
    return seen


@check
def not_asked_for_cpu_or_sums() -> dict[str, int]:
    """Maxima of CPU tensors, in a composite and in a gloo group, and sums: nothing extra reaches the backend."""
    counted()
    group = dist.new_group(list(range(c.ranks)))
    dist.all_reduce(torch.ones(2), MAX, group=group)
    dist.all_reduce(torch.ones(2), MAX, group=c.cpu_group)
    dist.all_reduce(xpu(1.0), SUM, group=group)
    return counted()


@check
def counting_modes_see_one() -> int:
    """CommDebugMode counts the user's collectives, not the check's."""
    from torch.distributed.tensor.debug import CommDebugMode

    group = dist.new_group(list(range(c.ranks)))
    with CommDebugMode() as mode:
        dist.all_reduce(xpu(1.0), MAX, group=group)
    return mode.get_total_counts()


@check
def fake_tensors_start_nothing() -> dict[str, int]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    group = dist.new_group(list(range(c.ranks)))
    counted()
    with FakeTensorMode(), contextlib.suppress(Exception):
        dist.all_reduce(torch.ones(2, device=c.device("xpu")), MAX, group=group)
    return counted()


@check
def cpu_average_stays_average() -> dict[str, int]:
    """Counted where gloo's kernel is called: an average of CPU tensors is one."""
    names = {int(value): name for name, value in dist.ReduceOp.RedOpType.__members__.items()}
    seen: list[str] = []
    native = torch.library.get_kernel("c10d::allreduce_", "CPU")

    def kernel(keys: Any, tensors: Any, group: Any, op: Any, *rest: Any) -> Any:
        seen.append(names[op.op()])
        return native.call_boxed(keys, tensors, group, op, *rest)

    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", kernel, "CPU", with_keyset=True, allow_override=True)
    try:
        for group in (c.group, c.cpu_group):
            dist.all_reduce(torch.ones(2), AVG, group=group)
    finally:
        library._destroy()
    return {name: seen.count(name) for name in sorted(set(seen))}


# Settings


TARGET = "_get_gradient_divide_factors"


def retirement() -> dict[str, str]:
    """The state of the FSDP2 patch on torch as it is, and on a torch that sums on xpu itself."""
    from unittest import mock

    import torch.distributed.fsdp._fully_shard._fsdp_collectives as module

    from xpu_shim.core.apply import apply_patch, remove_patch
    from xpu_shim.core.ledger import record

    stock = module._get_gradient_divide_factors

    # Wrapped, so that they have the signature of the release.
    @functools.wraps(stock)
    def summing(rs: Any, ar: Any, dtype: Any, device_type: str = "", factor: Any = None, force: bool = False) -> Any:
        return stock(rs, ar, dtype, device_type, factor, force or device_type == "xpu")

    @functools.wraps(stock)
    def averaging_replicas(*arguments: Any) -> Any:
        # As if only one leg of HSDP had been changed.
        before, after, scatter, reduce = summing(*arguments)
        return before, after, scatter, AVG if arguments[1] is not None else reduce

    seen = {}
    for name, function in {"stock": stock, "summing": summing, "half": averaging_replicas}.items():
        with mock.patch.object(module, TARGET, function):
            apply_patch("torch.fsdp2_sum")
            # Not the state alone: it also tells of this test's own references to the function.
            seen[name] = record("torch.fsdp2_sum").reason if module.__dict__[TARGET] is function else "in force"
            remove_patch("torch.fsdp2_sum")
    return seen


@contextlib.contextmanager
def variable(value: str) -> Iterator[list[str]]:
    """XPU_SHIM_REDUCE_AVG set; gives the warnings logged meanwhile."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Keep(level=logging.WARNING)
    logging.getLogger("xpu_shim").addHandler(handler)
    os.environ["XPU_SHIM_REDUCE_AVG"] = value
    try:
        yield messages
    finally:
        del os.environ["XPU_SHIM_REDUCE_AVG"]
        logging.getLogger("xpu_shim").removeHandler(handler)


def settings() -> dict[str, Any]:
    """Whether an average reaches the backend, by value of the variable, and what was logged."""
    from xpu_shim.core.apply import PatchError, apply_patch, remove_patch
    from xpu_shim.core.ledger import record

    seen: dict[str, Any] = {}
    for value in ("sum", "native", "SUM ", "mean"):
        with variable(value) as messages:
            apply_patch("torch.process_group_reductions")
            try:
                apply_patch("torch.fsdp2_sum")
            except PatchError:
                pass
            counted()
            with contextlib.suppress(RuntimeError):
                dist.all_reduce(xpu(1.0), AVG)
            seen[value] = {
                "average_reached": "all_reduce:avg" in counted(),
                "fsdp2": str(record("torch.fsdp2_sum")),
                "warnings": messages,
            }
            remove_patch("torch.process_group_reductions")
            remove_patch("torch.fsdp2_sum")
        dist.barrier(group=c.cpu_group)
    return seen
