"""`xpu-shim doctor --ray` on a real Ray cluster of three nodes on this machine, one of them without the shim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each starts clusters or waits for time limits

ROOT = Path(__file__).resolve().parents[3]

#: Hides the shim in the workers of one node: an import of it fails there as if it had never been installed.
HIDE = "import sys\nsys.modules['xpu_shim'] = None\nsys.modules['xpu_shim.doctor'] = None\n"


def doctor(*arguments, **environ):
    """Run the doctor in a process of its own, with the repository on the path."""
    return subprocess.run(
        [sys.executable, "-m", "xpu_shim.doctor", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Address of a cluster with an equal node, a node with other settings, and a node without the shim."""
    from ray.cluster_utils import Cluster

    hidden = tmp_path_factory.mktemp("hidden")
    (hidden / "sitecustomize.py").write_text(HIDE)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        made.add_node(num_cpus=1, env_vars={"ZE_AFFINITY_MASK": "0", "CCL_ALLREDUCE": "ring"})
        made.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(hidden)})
        yield made.address
    finally:
        made.shutdown()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def test_every_node_answers_and_differences_are_named(cluster):
    done = doctor("--ray", "--json", "--group", "environment", RAY_ADDRESS=cluster)
    report = json.loads(done.stdout)
    assert len(report["nodes"]) == 3
    without = [node for node in report["nodes"] if "problem" in node]
    assert len(without) == 1
    assert "the shim is not installed" in without[0]["problem"]
    states = {
        item["id"]: item["state"]
        for node in report["nodes"]
        for item in node.get("report", {}).get("checks", ())
        if item["state"] == "warning"
    }
    assert states["environment.scheduler_path"] == "warning"
    different = {item["what"]: item["state"] for item in report["differences"]}
    assert different["xpu-shim"] == "error"
    assert different["CCL_ALLREDUCE"] == different["ZE_AFFINITY_MASK"] == "warning"
    assert "torch" not in different
    assert done.returncode == report["status"] == 3


def test_no_cluster_is_said_at_once():
    done = doctor("--ray", RAY_ADDRESS="127.0.0.1:1")
    assert done.returncode == 2
    assert "no Ray cluster answers at '127.0.0.1:1'" in done.stderr
