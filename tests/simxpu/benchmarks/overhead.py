"""What the simulated device adds to an operator, to a training step and to `import torch`.

    SIMXPU=1 python benchmarks/overhead.py

Each line compares the CPU and the simulated device in one run; look at differences and ratios, not at times.
"""

import os
import statistics
import subprocess
import sys
import time

import torch

# ruff: noqa: B008 -- a default argument is the cheapest way to hand a tensor to a function that is timed

CASES = {
    "add": lambda d: lambda x=torch.ones(4, device=d): x + x,
    "add_": lambda d: lambda x=torch.ones(4, device=d): x.add_(1),
    "view": lambda d: lambda x=torch.ones(4, device=d): x.view(2, 2),
    "slice": lambda d: lambda x=torch.ones(4, device=d): x[1:],
    "empty": lambda d: lambda: torch.empty(4, device=d),
    "zeros": lambda d: lambda: torch.zeros(4, device=d),
    "mm": lambda d: lambda x=torch.ones(8, 8, device=d): x @ x,
    "copy_": lambda d: lambda x=torch.ones(4, device=d), y=torch.ones(4, device=d): x.copy_(y),
    "cat": lambda d: lambda x=torch.ones(4, device=d): torch.cat([x, x]),
    "item": lambda d: lambda x=torch.ones(1, device=d): x.item(),
    "randn": lambda d: lambda: torch.randn(4, device=d),
    "softmax": lambda d: lambda x=torch.ones(4, 4, device=d): x.softmax(-1),
}


def microseconds(function, calls: int) -> float:
    """Best of five rounds, per call."""
    for _ in range(calls // 10):
        function()
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        rounds.append((time.perf_counter() - start) / calls * 1e6)
    return min(rounds)


def training_step(device: str):
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.randn(64, 256, device=device)

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step


def import_seconds(value: str) -> float:
    code = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
    env = os.environ | {"SIMXPU": value}
    runs = [subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True) for _ in range(7)]
    return statistics.median(float(r.stdout) for r in runs)


def install_seconds() -> float:
    """Inside one process, which is steadier than a difference between two: torch's autoload of this package alone."""
    code = (
        "import os, time; os.environ['SIMXPU'] = '0'; import torch; os.environ['SIMXPU'] = '1'\n"
        "t = time.perf_counter(); from simxpu._autoload import autoload; autoload(); print(time.perf_counter() - t)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(7)]
    return statistics.median(float(r.stdout) for r in runs)


def main() -> None:
    torch.set_num_threads(1)
    print("| operator | CPU us | simulated us | added us |\n|---|---|---|---|")
    with torch.no_grad():
        for name, make in CASES.items():
            cpu, xpu = microseconds(make("cpu"), 5000), microseconds(make("xpu"), 5000)
            print(f"| {name} | {cpu:.2f} | {xpu:.2f} | {xpu - cpu:+.2f} |")
    cpu, xpu = microseconds(training_step("cpu"), 20), microseconds(training_step("xpu"), 20)
    print(
        f"training step, 8 linear layers of 256, batch 64: {cpu / 1e3:.2f} ms and {xpu / 1e3:.2f} ms, {xpu / cpu:.2f}x"
    )
    off, on, install = import_seconds("0"), import_seconds("1"), install_seconds()
    print(f"import torch: {off:.2f} s off, {on:.2f} s on; the autoload itself {install * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
