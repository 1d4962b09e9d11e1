"""Every operator of torch's own OpInfo database on the simulated XPU against the CPU.

    SIMXPU=1 nice python sweeps/opinfo.py forward --dtype float32
    SIMXPU=1 nice python sweeps/opinfo.py gradient --dtype bfloat16

Takes a few minutes on an idle core. Prints a summary and the operators that differ, and writes both as JSON to
sweeps/results/. ``--start N`` continues after an operator that ended the process.

Operators that the CPU does not have in the dtype asked for are compared in one it has. Samples that the CPU itself
refuses, and samples that are not dense tensors, are left out.
"""

import argparse
import collections
import itertools
import json
import pathlib
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

RESULTS = pathlib.Path(__file__).parent / "results"
#: Relative and absolute tolerance.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}
GRADIENT_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
#: Their results are whatever the memory holds.
UNDEFINED = ("empty", "new_empty", "empty_like", "empty_permuted", "empty_strided", "new_empty_strided")


class Difference(Exception):
    """The simulated device did something else than the CPU."""


def is_tensor(x) -> bool:
    return isinstance(x, torch.Tensor)


def dense(sample) -> bool:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return not any(is_tensor(t) and (t.layout != torch.strided or t.is_nested) for t in leaves)


def arguments(sample, device: str):
    def fresh(x):
        return x.detach().clone().to(device).requires_grad_(x.requires_grad) if is_tensor(x) else x

    kwargs = tree_map(fresh, dict(sample.kwargs))
    if "device" in kwargs:
        kwargs["device"] = device
    return tree_map(fresh, sample.input), tree_map(fresh, sample.args), kwargs


def forward(op, sample, device: str) -> list:
    given, args, kwargs = arguments(sample, device)
    torch.manual_seed(0)
    return tree_leaves(op.op(given, *args, **kwargs))


def gradient(op, sample, device: str) -> list | None:
    given, args, kwargs = arguments(sample, device)
    torch.manual_seed(0)
    outputs = [t for t in tree_leaves(op.op(given, *args, **kwargs)) if is_tensor(t) and t.requires_grad]
    inputs = [t for t in tree_leaves((given, args, kwargs)) if is_tensor(t) and t.requires_grad]
    if not outputs or not inputs:
        return None
    loss = sum((t.abs() if t.is_complex() else t).sum() for t in outputs)
    return list(torch.autograd.grad(loss, inputs, allow_unused=True))


def compare(op, reference: list, found: list, tolerance: float) -> None:
    if len(reference) != len(found):
        raise Difference(f"{len(found)} results instead of {len(reference)}")
    for x, y in zip(reference, found, strict=True):
        if (x is None) != (y is None):
            raise Difference("a gradient is missing")
        if isinstance(x, (int, float, bool)) and x == x and abs(x - y) > tolerance:
            raise Difference(f"{y} instead of {x}")
        if not is_tensor(x) or x.layout != torch.strided:
            continue
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise Difference(f"{y.dtype} {tuple(y.shape)} instead of {x.dtype} {tuple(x.shape)}")
        if op.name in UNDEFINED:
            continue
        if not torch.allclose(x, y.cpu(), atol=tolerance, rtol=tolerance, equal_nan=True):
            raise Difference("values differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("forward", "gradient"))
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--samples", type=int, default=4, help="samples per operator")
    parser.add_argument("--start", type=int, default=0, help="number of the first operator")
    args = parser.parse_args()
    if not torch.xpu.is_available():
        parser.error("there is no XPU; run with SIMXPU=1")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wanted = getattr(torch, args.dtype)
    run = forward if args.what == "forward" else gradient
    tolerance = (TOLERANCE if args.what == "forward" else GRADIENT_TOLERANCE)[wanted]
    RESULTS.mkdir(exist_ok=True)
    progress = RESULTS / f"{args.what}-{args.dtype}.progress"

    counts, samples_compared, bad = collections.Counter(), 0, {}
    for number, op in enumerate(op_db):
        if number < args.start:
            continue
        progress.write_text(f"{number} {op.full_name}\n")
        if args.what == "gradient" and not (op.supports_autograd and op.supports_dtype(wanted, "cpu")):
            continue
        dtypes = [wanted, torch.float32, torch.int64, torch.bool, torch.complex64]
        dtype = next((d for d in dtypes if op.supports_dtype(d, "cpu")), next(iter(op.dtypes), torch.float32))
        try:
            generated = op.sample_inputs("cpu", dtype, requires_grad=args.what == "gradient")
            samples = [s for s in itertools.islice(generated, args.samples) if dense(s)]
        except Exception:
            counts["no samples"] += 1
            continue
        compared, why = 0, None
        for sample in samples:
            try:
                reference = run(op, sample, "cpu")
            except Exception:
                continue
            if reference is None:
                continue
            compared += 1
            try:
                compare(op, reference, run(op, sample, "xpu"), tolerance)
            except Exception as error:
                why = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:200]
                break
        samples_compared += compared
        counts["differs" if why else "equal" if compared else "nothing to compare"] += 1
        if why:
            bad[op.full_name] = why
    result = {"torch": str(torch.__version__), "counts": counts, "samples": samples_compared, "differs": bad}
    (RESULTS / f"{args.what}-{args.dtype}.json").write_text(json.dumps(result, indent=2) + "\n")
    progress.unlink()
    print(args.what, args.dtype, dict(counts), "samples compared:", samples_compared)
    for name, why in bad.items():
        print(f"  {name}: {why}")


if __name__ == "__main__":
    main()
