"""Run as one rank: for each round, two steps of verl's own actor worker with verl's own profiler switches around them.

    python rank_step.py MODEL '[{"name": ..., "profiled": [2], "overrides": [...]}, ...]'

The driver's side is played by the rank itself: `Tracking` gets the configuration, and each stage is inside verl's
`marked_timer`, as in verl's trainer. Each round has its own ITT log, <ITT_LOG>.<round>.<rank>.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def steps(config, profiled: list[int]) -> None:
    """Two training steps; those in `profiled` are between start_profile and stop_profile."""
    import tiny
    from omegaconf import OmegaConf
    from verl.utils import tensordict_utils as tu
    from verl.utils.debug import marked_timer
    from verl.utils.tracking import Tracking
    from verl.workers.engine_workers import ActorRolloutRefWorker

    Tracking("project", "experiment", ["console"], OmegaConf.to_container(config, resolve=True))
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    for step in (1, 2):
        timing: dict[str, float] = {}
        with marked_timer("step", timing):
            if step in profiled:
                worker.start_profile(role="train", profile_step=step)
            with marked_timer("old_log_prob", timing, color="blue"):
                data = tiny.batch()
                tu.assign_non_tensor(data, compute_loss=False)
                worker.compute_log_prob(data)
            with marked_timer("update_actor", timing, color="red"):
                data = tiny.batch()
                size = 4 * int(os.environ["WORLD_SIZE"])
                tu.assign_non_tensor(
                    data,
                    compute_loss=True,
                    global_batch_size=size,
                    mini_batch_size=size,
                    epochs=1,
                    seed=1,
                    dataloader_kwargs={"shuffle": False},
                )
                worker.update_actor(data)
            if step in profiled:
                worker.stop_profile()
        assert list(timing) == ["old_log_prob", "update_actor", "step"], timing
        assert timing["step"] >= timing["old_log_prob"] + timing["update_actor"] > 0, timing


def main() -> None:
    import tiny
    import torch
    import verl  # noqa: F401 - the shim's hook waits for it

    model, rounds = Path(sys.argv[1]), json.loads(sys.argv[2])
    rank, prefix = os.environ["RANK"], os.environ["ITT_LOG"]
    torch.set_num_threads(1)
    torch.manual_seed(int(rank))
    for each in rounds:
        os.environ["ITT_LOG"] = f"{prefix}.{each['name']}.{rank}"
        steps(tiny.configuration(*tiny.training(model), *each["overrides"]), each["profiled"])
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    print("RANK_OK", flush=True)


if __name__ == "__main__":
    main()
