"""Runs a stock verl command on simulated cards and shows what happened. Called by demo.sh in the environment it made."""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import psutil
import task
from rich.console import Console
from rich.table import Table

console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 120)

#: The faults of the real stack that the demo switches on, what each does to the stock run, and where that is to be seen.
#: In this run nothing looks at the devices before a mask is set, so that mask_frozen shows itself in tests only.
FAULTS = {
    "avg_abort": (
        "oneCCL aborts in the first step: average operation is not supported for the scheduler path",
        "--without-cure avg_abort",
    ),
    "mask_frozen": (
        "a device mask set after the first look at the devices does nothing: every rank on card 0",
        "tests/simulated/devices",
    ),
    "free_memory_zero": (
        "the driver reports 0 bytes free: vLLM refuses to start with a false out-of-memory",
        "--without-cure free_memory_zero",
    ),
    "minmax_sum": (
        "MIN and MAX return the sum: twice as many micro-batches on two ranks, silently",
        "--without-cure minmax_sum",
    ),
}

#: The patches that cure those which can be seen in this run, for `--without-cure`.
CURES = {
    "avg_abort": ("torch.fsdp2_sum", "torch.functional_reductions", "torch.process_group_reductions"),
    "free_memory_zero": ("vllm.memory_snapshot", "vllm.request_memory"),
    "minmax_sum": ("torch.process_group_reductions",),
}

#: Longest time a run may go without a line of output, and altogether, in seconds.
SILENCE, LONGEST = 600, 1800

#: Seconds until the first training step, and per step, on 2 cores; only for the estimate that is printed.
START, STEP = {"grpo": 180, "ppo": 190, "sft": 35}, {"grpo": 5, "ppo": 8, "sft": 1}

ANSI = re.compile(r"\x1b\[[0-9;]*m")
METRIC = re.compile(r"([\w@./-]+):(-?[\d.]+(?:e[+-]?\d+)?|nan|inf)\b")


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo.sh", description=__doc__)
    parser.add_argument("--algorithm", choices=sorted(commands.ALGORITHMS), default="grpo")
    parser.add_argument("--steps", type=positive, help="training steps (default: 3; sft 8)")
    parser.add_argument("--cards", type=positive, help="simulated cards (default: 2; sft 4)")
    parser.add_argument("--strategy", choices=("fsdp", "fsdp2"), help="sharding (default: verl's own choice)")
    parser.add_argument("--faults", help="comma-separated, instead of " + ",".join(FAULTS))
    parser.add_argument("--without-shim", action="store_true", help="the stock run, to see where it stops")
    parser.add_argument(
        "--without-cure", choices=sorted(CURES), help="this fault alone, and the patches that cure it switched off"
    )
    parser.add_argument("--folder", type=Path, default=Path("outputs/demo"), help="model, data, log and report")
    parser.add_argument("overrides", nargs="*", help="more Hydra overrides for the command, after --")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the command and what it started, as Ctrl-C does
    if options.without_cure:
        options.faults = options.without_cure
    sft = options.algorithm == "sft"
    options.steps = options.steps or (8 if sft else 3)
    options.cards = options.cards or (4 if sft else 2)
    options.folder = options.folder.resolve()

    announce(1, "a two-layer Qwen2 with random weights and 512 one-digit sums", options, 15)
    if not (options.folder / "data" / "sft_test.parquet").exists():
        task.make_model(options.folder / "model")
        task.make_data(options.folder / "data")

    stock = [*commands.ALGORITHMS[options.algorithm](options.folder, options.cards, options.steps)]
    if options.strategy:
        stock += (
            [f"engine.strategy={options.strategy}"] if sft else [f"actor_rollout_ref.actor.strategy={options.strategy}"]
        )
    stock += options.overrides
    console.print("the command, as for any GPU:", style="bold")
    console.print(" \\\n    ".join(["python3 " + " ".join(stock[:2]), *stock[2:]]), markup=False)
    announce(2, f"{options.algorithm} on {options.cards} simulated cards, {options.steps} steps", options, 0)
    log, report = options.folder / f"{options.algorithm}.log", options.folder / f"{options.algorithm}.json"
    report.unlink(missing_ok=True)
    status, steps = run(stock, options, log, report)
    shim_is_on = environment(options).get("XPU_SHIM") != "0"
    announce(3, "report", options, None)
    # A resumed run logs only the steps that were left to do.
    ended_well = status == 0 and bool(steps) and steps[-1]["step"] >= options.steps
    if report.exists() and shim_is_on:
        show_processes(json.loads(report.read_text()))
    show_steps(steps)
    if report.exists() and shim_is_on and not sft:
        show_weights(json.loads(report.read_text()))
    show_faults(options, shim_is_on)
    if not ended_well:
        show_failure(log, status, shim_is_on)
    console.print(f"log: {log}", markup=False)
    if options.without_shim:
        return 0 if not ended_well else 1  # the stock run is expected to stop
    return 0 if ended_well else status or 1


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def announce(number: int, text: str, options: argparse.Namespace, before: float | None) -> None:
    left = ""
    if before is not None:
        seconds = before + START[options.algorithm] + options.steps * STEP[options.algorithm]
        left = f" (about {max(1, round(seconds / 60))} min left)"
    console.print(f"[bold]\\[{number}/3][/] {text}{left}")


def environment(options: argparse.Namespace) -> dict[str, str]:
    """The command's environment: simulated cards with their faults, and a vLLM that is content with little memory."""
    faults = options.faults if options.faults is not None else ",".join(FAULTS)
    extra = {
        "SIMXPU": "1",
        "SIMXPU_DEVICES": f"B60x{options.cards}",
        "SIMXPU_FAULTS": faults,
        # Every weight sync is compared at both ends and with the model vLLM serves.
        "XPU_SHIM_WEIGHT_SYNC_VERIFY": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(options.folder / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray gives its workers the lowest priority and its daemons 30 seconds to start; on two busy cores both are too little.
        "RAY_worker_niceness": "0",
        "RAY_raylet_start_wait_time_s": "180",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    if options.without_shim:
        extra["XPU_SHIM"] = "0"
    if options.without_cure:
        extra["XPU_SHIM_DISABLE"] = ",".join(CURES[options.without_cure])
    return {**os.environ, **extra}


def run(stock: list[str], options: argparse.Namespace, log: Path, report: Path) -> tuple[int, list[dict[str, float]]]:
    """Run the command, with its output in a log; shows each step as it comes. Bounded, and leaves no process behind."""
    command = [sys.executable, "-m", "xpu_shim", "run", "--json", str(report), "--", sys.executable, *stock]
    steps: list[dict[str, float]] = []
    started = last = said = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        child = subprocess.Popen(
            command,
            env=environment(options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            pipe, pending = child.stdout.fileno(), ""
            while True:
                # A process that detached itself may keep the pipe open for ever: its end is not what is waited for.
                ready, _, _ = select.select([pipe], [], [], 1)
                chunk = os.read(pipe, 1 << 16).decode(errors="replace") if ready else ""
                now = time.monotonic()
                if chunk:
                    last = now
                    file.write(chunk)
                    file.flush()
                    *lines, pending = (pending + chunk).split("\n")
                    for line in lines:
                        metrics = read_step(line)
                        if metrics:
                            steps.append(metrics)
                            show_step(metrics, now - started, options)
                elif child.poll() is not None:
                    return child.returncode, steps
                elif now - last > SILENCE or now - started > LONGEST:
                    what = f"no output for {SILENCE} s" if now - last > SILENCE else f"not done after {LONGEST} s"
                    console.print(f"[red]stopped: {what}[/]; the last lines of {log} say what it waited for")
                    return 124, steps
                elif now - said > 20:
                    said = now
                    console.print(f"  {now - started:4.0f} s: {stage(log)}", markup=False)
        except KeyboardInterrupt:
            console.print("interrupted; ending the command and what it started")
            return 130, steps
        finally:
            end(child)


def end(child: subprocess.Popen) -> None:
    """End the command's process group, then whatever of it detached itself (Ray's daemons do)."""
    tree = []
    try:
        tree = psutil.Process(child.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        pass
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            break
        os.killpg(child.pid, number)
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            continue
    _, alive = psutil.wait_procs(tree, timeout=5)
    for process in alive:
        process.kill()


def read_step(line: str) -> dict[str, float] | None:
    """The metrics of a console logger's line ("step:1 - actor/loss:0.5 - …"), or None for any other line."""
    text = ANSI.sub("", line)
    start = re.search(r"\bstep:(\d+) - ", text)
    if not start:
        return None
    metrics = {name: float(value) for name, value in METRIC.findall(text[start.end() :])}
    # The SFT trainer logs its validation as a step of its own.
    return {"step": float(start[1]), **metrics} if "train/loss" in metrics or "actor/grad_norm" in metrics else None


#: What a line of the log says about where the run is, latest first. The configuration that verl prints at the start
#: names nearly everything, so these are what the actors of each kind say ("(WorkerDict pid=123) ...").
STAGES = (
    (r"Training Progress|step:\d", "training"),
    (r"^\W*\(vLLMHttpServer.*(init engine|Application startup|HTTP server)", "vLLM is ready"),
    (r"^\W*\(vLLMHttpServer", "vLLM starts"),
    (r"^\W*\(WorkerDict", "the training ranks load the model"),
    (r"Started a local Ray instance", "Ray is up, verl builds its workers"),
)


def stage(log: Path) -> str:
    text = ANSI.sub("", log.read_text(errors="replace"))
    return next((words for mark, words in STAGES if re.search(mark, text, re.M)), "Python imports verl")


#: Column title to the names verl gives the metric (the first that is there counts).
COLUMNS = {
    "reward": ("critic/score/mean", "critic/rewards/mean"),
    "loss": ("actor/loss", "actor/pg_loss", "train/loss"),
    "critic loss": ("critic/vf_loss",),
    "grad norm": ("actor/grad_norm", "train/grad_norm"),
    "weight sync s": ("timing_s/update_weights", "timing_s/weight_sync"),
    "step s": ("timing_s/step", "train/time(s)"),
    "rollout against trainer": ("training/rollout_probs_diff_mean",),
}


def pick(metrics: dict[str, float], names: tuple[str, ...]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


def show_step(metrics: dict[str, float], seconds: float, options: argparse.Namespace) -> None:
    parts = [f"{title} {value:.4g}" for title, names in COLUMNS.items() if (value := pick(metrics, names)) is not None]
    console.print(f"  {seconds:4.0f} s: step {metrics['step']:.0f} of {options.steps}: {', '.join(parts)}")


def show_steps(steps: list[dict[str, float]]) -> None:
    titles = [title for title, names in COLUMNS.items() if any(pick(step, names) is not None for step in steps)]
    table = Table("step", *titles, title="training on simulated cards", title_justify="left")
    for step in steps:
        values = (pick(step, COLUMNS[title]) for title in titles)
        table.add_row(f"{step['step']:.0f}", *("" if value is None else f"{value:.4g}" for value in values))
    if steps:
        console.print(table)


def show_weights(reports: list[dict]) -> None:
    """Whether the weights vLLM serves were the trainer's after every sync, and how many that was shown of."""
    found = [result for item in reports for result in item.get("notes", {}).get("weight_sync_receiver", [])]
    sent = {result["digest"] for item in reports for result in item.get("notes", {}).get("weight_sync_sender", [])}
    equal = [r for r in found if r["equal_to_sender"] and r["equal_in_model"] == r["tensors"] and r["digest"] in sent]
    answer = "yes" if found and len(equal) == len(found) else "not shown" if not found else "NO"
    details = ""
    if found:
        rounded = f", rounded to the {found[0]['rounded_to']} it serves" if found[0].get("rounded_to") else ""
        details = (
            f" (bit for bit in {len(equal)} of {len(found)} syncs{rounded}; {found[0]['tensors']} tensors each, "
            f"{len(sent)} different sets of weights)"
        )
    console.print(f"trainer and rollout weights equal: [bold]{answer}[/]{details}", soft_wrap=True)


def show_processes(reports: list[dict]) -> None:
    """Kinds of processes x patches: in how many of each kind a patch was applied, and why not in the others."""
    kinds: dict[str, list[dict]] = {}
    for item in reports:
        if item["active"]:
            kinds.setdefault(item["process"], []).append(item)
    table = Table("patch", *(f"{kind} x{len(items)}" for kind, items in kinds.items()), title_justify="left")
    table.title = f"what xpu-shim did in {sum(map(len, kinds.values()))} processes"
    for patch_id in sorted({name for item in reports for name in item["patches"]}):
        cells = []
        for items in kinds.values():
            states: dict[str, int] = {}
            for item in items:
                state = item["patches"].get(patch_id, {"state": "armed"})["state"]
                states[state] = states.get(state, 0) + 1
            states.pop("armed", None)
            cells.append(", ".join(f"{state} {number}" for state, number in sorted(states.items())))
        if any("applied" in cell or "failed" in cell or "drifted" in cell for cell in cells):
            table.add_row(patch_id, *cells)
    console.print(table)


def show_faults(options: argparse.Namespace, shim_is_on: bool) -> None:
    wanted = (options.faults if options.faults is not None else ",".join(FAULTS)).split(",")
    table = Table("fault, switched on", "what it does to the stock run", "to be seen with", title_justify="left")
    table.title = "faults of the real stack, simulated" + ("" if shim_is_on else "; the shim was off")
    for fault in filter(None, wanted):
        table.add_row(fault, *FAULTS.get(fault, ("see `simxpu faults`", "tests/simxpu")))
    console.print(table)


def show_failure(log: Path, status: int, shim_is_on: bool) -> None:
    """The first error in the log, with its line number, and how to read it."""
    console.print(f"[red]the command ended with status {status}[/]" + ("" if shim_is_on else " (as expected: stock)"))
    error = re.compile(r"^\W*(\(\w+ pid=\d+\)\W*)?([\w.]*(Error|Exception)(:| with ).*)")
    for number, line in enumerate(log.read_text(errors="replace").splitlines(), 1):
        match = error.match(ANSI.sub("", line).strip())
        if match and "RayTaskError" not in match[2] and "UserWarning" not in match[2]:
            console.print(f"first error, line {number}: {match[2][:400]}", markup=False)
            return
    console.print("no error in the log; its last lines:")
    console.print("\n".join(log.read_text(errors="replace").splitlines()[-5:]), markup=False)


if __name__ == "__main__":
    sys.exit(main())
