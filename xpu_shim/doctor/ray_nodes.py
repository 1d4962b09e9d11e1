"""`xpu-shim doctor --ray`: the checks on every node of a Ray cluster, as Ray tasks, and what differs between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xpu_shim.doctor.check import ERROR, WARNING
from xpu_shim.doctor.versions import MUST

#: Seconds a node has for its answer.
LIMIT = 120.0


class NoClusterError(RuntimeError):
    """No Ray cluster can be reached; the message says what was tried and what to do."""


def examine(groups: Sequence[str] = (), address: str | None = None, limit: float = LIMIT) -> dict[str, Any]:
    """Run the checks on every living node of the cluster and compare.

    Args:
        groups: groups of checks, all for none.
        address: of the cluster; None for ``RAY_ADDRESS`` or the one running on this machine.
        limit: seconds for all answers together.

    Returns:
        ``nodes`` (each with `name`, `node_id` and either `report` and `versions`, or `problem` and `fix`) and
        ``differences`` (each with `what`, `state`, `values`: value to names of nodes).

    Raises:
        NoClusterError: if Ray is not installed or no cluster answers.
    """
    ray = _connect(address)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        task = ray.remote(num_cpus=0, max_retries=0)(_make_task())
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        asked = {
            node["NodeID"]: task.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(list(groups))
            for node in nodes
        }
        ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=limit)
        answers = []
        for node in nodes:
            reference = asked[node["NodeID"]]
            answer: dict[str, Any] = {"name": node["NodeManagerHostname"], "node_id": node["NodeID"]}
            if reference not in ready:
                answer["problem"] = f"no answer within {limit:g} s: no worker could be started there, or a check hangs"
                answer["fix"] = f"ray logs raylet.err --node-id {node['NodeID']} --tail 20"
                ray.cancel(reference, force=True)
            else:
                try:
                    answer.update(ray.get(reference, timeout=limit))
                except Exception as error:  # the task's own error, a lost node, a worker that was killed
                    answer["problem"] = f"{type(error).__name__}: {error}".splitlines()[0]
            answers.append(answer)
    finally:
        ray.shutdown()
    return {"nodes": answers, "differences": differences(answers)}


def _connect(address: str | None) -> Any:
    import os

    try:
        import ray
    except ImportError as error:
        raise NoClusterError(
            "Ray is not installed for this interpreter. Install it as verl asks: pip install ray"
        ) from error
    target = address or os.environ.get("RAY_ADDRESS") or "auto"
    _reachable(target)
    try:
        # Workers must not look for their code in this directory: it may be another one on the next node.
        ray.init(address=target, logging_level="ERROR", log_to_driver=False, configure_logging=True)  # type: ignore[arg-type]
    except Exception as error:  # ConnectionError, ValueError, RuntimeError, and what gRPC adds
        text = str(error).strip().splitlines()
        raise NoClusterError(
            f"no Ray cluster answers at {target!r} ({text[0] if text else type(error).__name__}). "
            "Start one with `ray start --head`, or name it in RAY_ADDRESS."
        ) from error
    return ray


def _reachable(target: str) -> None:
    """Complain at once about an address nobody listens at: `ray.init` would try it for minutes."""
    import re

    from xpu_shim.doctor.machine import connect

    found = re.fullmatch(r"(?:\w+://)?(\[[^\]]+\]|[^:/]+):(\d+)/?", target)
    if found is None:
        return
    try:
        connect(found[1].strip("[]"), int(found[2]), 5.0)
    except (OSError, OverflowError) as error:
        raise NoClusterError(
            f"no Ray cluster answers at {target!r} ({error}). Start one with `ray start --head`, or correct RAY_ADDRESS."
        ) from error


def _make_task() -> Any:
    def look(groups: list[str]) -> dict[str, Any]:
        # Shipped by value, as it is defined in a function: a node without the shim must be able to run it.
        import sys

        try:
            from xpu_shim.doctor import examine as engine
            from xpu_shim.doctor import versions
            from xpu_shim.doctor.machine import Machine
        except ImportError as error:
            return {
                "problem": f"the shim is not installed for {sys.executable} ({error})",
                "fix": f"{sys.executable} -m pip install xpu-shim   # on that node",
                "versions": {"python": ".".join(map(str, sys.version_info[:2])), "xpu-shim": "-"},
            }
        machine = Machine()
        report = engine.as_dict(engine.run(machine, engine.select(groups)))
        return {"report": report, "versions": versions.of(machine)}

    return look


def differences(nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What has more than one value among the nodes that answered; an error where processes would not fit together."""
    answered = [node for node in nodes if node.get("versions")]
    found = []
    for what in dict.fromkeys(name for node in answered for name in node["versions"]):
        values: dict[str, list[str]] = {}
        for node in answered:
            # A node without the shim tells only its Python.
            if what in node["versions"] or "report" in node:
                values.setdefault(node["versions"].get(what, "-"), []).append(f"{node['name']}/{node['node_id'][:8]}")
        if len(values) > 1:
            found.append({"what": what, "state": ERROR if what in MUST else WARNING, "values": values})
    return found
