"""The environment policy: every variable the shim sets, removes or recommends, with the reason and public evidence.

A value the user set always wins. The one exception is ``ONEAPI_DEVICE_SELECTOR``, which breaks oneDNN and Triton in any
process that runs model code: it is removed and what it restricted is written into ``ZE_AFFINITY_MASK``, with a warning.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from xpu_shim.intel.devices import IntelGpu, intel_gpus
from xpu_shim.intel.visibility import HIERARCHY, MASK, SELECTOR, Card, merge_selector, parse_hierarchy, parse_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

SET, REMOVE, RECOMMEND = "set", "remove", "recommend"

#: PCI device ids of the Battlemage family (Arc B, Arc Pro B).
BATTLEMAGE = range(0xE200, 0xE300)


class Facts(NamedTuple):
    """What a rule may look at."""

    environ: Mapping[str, str]
    #: Release numbers of torch, (2, 13, 0); empty if unknown.
    torch: tuple[int, ...]
    gpus: tuple[IntelGpu, ...]


class Rule(NamedTuple):
    """One row of the policy."""

    name: str
    #: "set" (only where the user set nothing), "remove" or "recommend" (only said, at XPU_SHIM_LOG=info).
    action: str
    #: What is set or recommended; empty for "remove".
    value: str
    #: When, in words, and as a function of the facts.
    when: str
    applies: Callable[[Facts], bool]
    why: str
    evidence: tuple[str, ...]


class Change(NamedTuple):
    """What a rule asks for here; `value` None means removal."""

    name: str
    value: str | None
    rule: Rule


def _expandable(name: str) -> Rule:
    return Rule(
        name,
        RECOMMEND,
        "",
        "it asks for expandable_segments",
        lambda facts: "expandable_segments:true" in facts.environ.get(name, "").lower(),
        "Expandable segments on XPU lose the device in the first large all_reduce and hang FSDP2 steps. "
        "Remove expandable_segments from the value.",
        ("https://github.com/intel/torch-xpu-ops/issues/4427", "https://github.com/pytorch/torchtitan/pull/3890"),
    )


def _battlemage(facts: Facts) -> bool:
    return any(gpu.device_id in BATTLEMAGE for gpu in facts.gpus)


RULES: tuple[Rule, ...] = (
    Rule(
        SELECTOR,
        REMOVE,
        "",
        "it is set",
        lambda facts: SELECTOR in facts.environ,
        "A selector that leaves only Level Zero devices takes oneDNN's OpenCL device away ('could not create a "
        "primitive') and breaks Triton's device query when vLLM's engine starts; bare ids make torch's import fail.",
        (
            "https://github.com/ray-project/ray/pull/64440",
            "https://github.com/IntelPython/dpctl/issues/1406",
            "https://github.com/kahlun/verl/pull/1",
        ),
    ),
    Rule(
        "CCL_ZE_CACHE_OPEN_IPC_HANDLES",
        SET,
        "0",
        "Arc B cards with torch before 2.13 (oneCCL 2021.17)",
        lambda facts: bool(facts.torch) and facts.torch < (2, 13) and _battlemage(facts),
        "A stale cached IPC handle gives a GPU page fault and then an endless wait once a peer's buffer is "
        "reallocated, which colocated training and rollout do all the time. Costs about 3 %.",
        ("https://github.com/uxlfoundation/oneCCL/issues/212", "https://github.com/vllm-project/vllm/issues/41663"),
    ),
    Rule(
        "CCL_ZE_IPC_EXCHANGE",
        RECOMMEND,
        "sockets",
        "torch before 2.13",
        lambda facts: bool(facts.torch) and facts.torch < (2, 13),
        "FSDP1's initial broadcast can hang with the default handle exchange. Together with CCL_ATL_TRANSPORT=mpi; "
        "it has no effect where the container forbids pidfd_getfd "
        "(https://github.com/uxlfoundation/oneCCL/issues/213).",
        ("https://github.com/intel/torch-xpu-ops/issues/4238",),
    ),
    Rule(
        "CCL_ALLREDUCE",
        RECOMMEND,
        "ring",
        "Arc B cards with torch 2.13 (oneCCL 2022.0 and 2022.1), if an all_reduce hangs",
        lambda facts: facts.torch[:2] == (2, 13) and _battlemage(facts),
        "The default algorithm hung on several B60 cards with these releases. About 30 % slower.",
        ("https://github.com/uxlfoundation/oneCCL/issues/215", "https://github.com/vllm-project/vllm/issues/50545"),
    ),
    Rule(
        "NEOReadDebugKeys",
        RECOMMEND,
        "1",
        "host memory grows by the size of the cards' memory (with EnableDeferBacking=0)",
        _battlemage,
        "The driver's deferred backing doubles allocations in host memory.",
        ("https://github.com/vllm-project/vllm/issues/50269",),
    ),
    _expandable("PYTORCH_ALLOC_CONF"),
    _expandable("PYTORCH_CUDA_ALLOC_CONF"),
    _expandable("PYTORCH_XPU_ALLOC_CONF"),
)


def plan(facts: Facts) -> tuple[Change, ...]:
    """What the rules ask for, recommendations included; touches nothing.

    Raises:
        xpu_shim.intel.visibility.VisibilityError: if mask, selector or hierarchy is malformed or they leave no GPU.
    """
    hierarchy = parse_hierarchy(facts.environ.get(HIERARCHY))
    parse_mask(facts.environ.get(MASK), hierarchy)
    changes = []
    for rule in RULES:
        if not rule.applies(facts):
            continue
        if rule.action == SET and rule.name in facts.environ:
            continue
        changes.append(Change(rule.name, None if rule.action == REMOVE else rule.value, rule))
        if rule.name == SELECTOR:
            cards = [Card(gpu.tiles, gpu.discrete) for gpu in facts.gpus]
            mask = merge_selector(facts.environ.get(MASK), facts.environ[SELECTOR], cards, hierarchy)
            if mask != facts.environ.get(MASK):
                changes.append(Change(MASK, mask, rule))
    return tuple(changes)


def apply(environ: MutableMapping[str, str] | None = None, torch_version: str = "") -> tuple[Change, ...]:
    """Bring `environ` (default ``os.environ``) in line with the policy and return what was changed.

    Raises:
        xpu_shim.intel.visibility.VisibilityError: as :func:`plan`; the environment is unchanged then.
    """
    from xpu_shim.core.log import logger, warn_once
    from xpu_shim.core.versions import release

    environ = os.environ if environ is None else environ
    facts = Facts(environ, release(torch_version) if torch_version else (), intel_gpus())
    log = logger("xpu_shim.environment")
    done = []
    changes = plan(facts)
    selector = environ.get(SELECTOR)
    for change in changes:
        if change.rule.action == RECOMMEND:
            advice = f"{change.name}={change.value}" if change.value else f"change {change.name}"
            log.info(
                "recommended: %s when %s. %s (%s)", advice, change.rule.when, change.rule.why, change.rule.evidence[0]
            )
            continue
        if change.value is None:
            environ.pop(change.name, None)
        else:
            environ[change.name] = change.value
            log.info("set %s=%s: %s", change.name, change.value, change.rule.why)
        done.append(change)
    if selector is not None:
        kept = f"its restriction is kept as {MASK}={environ[MASK]}" if MASK in environ else "it restricted nothing"
        warn_once(
            f"{SELECTOR}={selector!r} was removed, it breaks oneDNN and Triton in processes that run models; {kept}. "
            f"Restrict devices with {MASK} instead."
        )
    return tuple(done)
