"""The stock SFT command, no XPU override in it, on 4 simulated cards: trains, validates, checkpoints, resumes.

Compared with the same trainer on the CPU with gloo. Run through `python -m torch.distributed.run`, which is `torchrun`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import environment, run

HERE = Path(__file__).parent

#: Upstream's examples/sft/gsm8k/run_qwen2_5_0_5b_fsdp.sh, with sizes for a model of a few thousand weights.
COMMAND = (
    "-m torch.distributed.run --standalone --nnodes=1 --nproc_per_node=4 -m verl.trainer.sft_trainer "
    "data.train_files={data}/train.parquet data.val_files={data}/val.parquet data.messages_key=messages "
    "data.micro_batch_size_per_gpu=2 optim.lr=1e-3 engine=fsdp engine.strategy={strategy} "
    "engine.ulysses_sequence_parallel_size=1 model.path={data}/model model.use_remove_padding=true "
    "trainer.default_local_dir={output} trainer.project_name=gsm8k-sft trainer.experiment_name=tiny "
    'trainer.logger=["console"] trainer.total_epochs=1 '
    "data.train_batch_size=16 data.num_workers=0 trainer.test_freq=2 trainer.save_freq=4"
)

#: Computes in float32, so that the comparison with the CPU can be strict.
FLOAT32 = "+engine.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"

#: Seconds for one run of the command; it takes a minute on two busy cores.
LIMIT = 400


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    run(str(HERE / "tiny_sft.py"), str(folder), XPU_SHIM="0", SIMXPU="0")
    return folder


def sft(data: Path, output: Path, strategy: str, *overrides: str, **environ: str) -> tuple[int, str]:
    """Run the command; its exit code and everything it printed."""
    command = COMMAND.format(data=data, output=output, strategy=strategy)
    done = subprocess.run(
        [sys.executable, *command.split(), *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        cwd=output.parent,
        env=environment(SIMXPU_FAULTS="avg_abort", **environ),
    )
    return done.returncode, done.stdout


def values(text: str, key: str) -> list[float]:
    """A metric over the steps, as verl's console logger prints it."""
    return [float(value) for value in re.findall(rf"\b{key}:(-?[0-9.e+-]+)", text)]


def on_the_cpu(data: Path, output: Path, strategy: str) -> str:
    """The same training with verl on the CPU and gloo, without the shim and without simulated cards."""
    code, text = sft(
        data,
        output,
        strategy,
        FLOAT32,
        "trainer.device=cpu",
        "+model.override_config.attn_implementation=sdpa",
        XPU_SHIM="0",
        SIMXPU="0",
        VERL_PLATFORM="cpu",
        VERL_USE_EXTERNAL_MODULES="cpu_platform",
    )
    assert code == 0, text[-3000:]
    return text


def trains_as_on_the_cpu(data: Path, tmp_path: Path, strategy: str) -> None:
    """Two steps, a checkpoint, and two more in a new run, against four steps on the CPU."""
    log = {"XPU_SHIM_LOG": "info", "SIMXPU_TRIPWIRE": str(tmp_path / "first_use")}
    code, first = sft(data, tmp_path / "xpu", strategy, FLOAT32, "trainer.total_training_steps=2", **log)
    assert code == 0, first[-3000:]
    first_uses = [json.loads(line)["stack"] for line in (tmp_path / "first_use").read_text().splitlines()]
    assert len(first_uses) == 4, "a process besides the ranks used the device"
    for stack in first_uses:
        assert any("devices/pinning.py" in frame for frame in stack), stack
    for rank in range(4):
        assert f"rank {rank} of 4 sits alone on xpu:{rank}" in first
    assert (tmp_path / "xpu" / "global_step_2").is_dir()

    code, second = sft(data, tmp_path / "xpu", strategy, FLOAT32)
    assert code == 0, second[-3000:]
    assert [int(step) for step in re.findall(r"\bstep:(\d+) - .*train/loss", second)] == [3, 4], "did not resume"
    assert (tmp_path / "xpu" / "global_step_4").is_dir()

    # Always fsdp2 there: FSDP1 refuses to synchronise module states on the CPU. Both compute the same.
    reference = on_the_cpu(data, tmp_path / "cpu", "fsdp2")
    loss = values(first, "train/loss") + values(second, "train/loss")
    validation = values(first, "val/loss") + values(second, "val/loss")
    assert len(loss) == 4
    assert validation[-1] < validation[0]
    assert loss == pytest.approx(values(reference, "train/loss"), abs=1e-4)
    assert validation == pytest.approx(values(reference, "val/loss"), abs=1e-4)


@pytest.mark.slow
def test_fsdp2_trains_validates_checkpoints_and_resumes(data, tmp_path):
    trains_as_on_the_cpu(data, tmp_path, "fsdp2")


@pytest.mark.slow
def test_fsdp_trains_validates_checkpoints_and_resumes(data, tmp_path):
    trains_as_on_the_cpu(data, tmp_path, "fsdp")


@pytest.mark.slow
def test_without_the_shim_the_command_fails(data, tmp_path):
    code, text = sft(data, tmp_path / "off", "fsdp2", XPU_SHIM="0")
    assert code != 0
    assert "No supported accelerator detected" in text
    assert "Falling back to 'nvidia'" in text
    assert values(text, "train/loss") == []


@pytest.mark.slow
def test_a_mask_of_two_cards_for_four_ranks_is_one_clear_error(data, tmp_path):
    code, text = sft(data, tmp_path / "mask", "fsdp2", ZE_AFFINITY_MASK="2,3")
    assert code != 0
    assert "needs 3 devices, but this process sees 2 (ZE_AFFINITY_MASK='2,3')" in text
