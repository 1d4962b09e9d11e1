"""The contract every patch keeps, tried on real upstream modules; run as a program, one process a scenario.

    python cases.py SCENARIO

prints one JSON object: case name to patch id to "ok", "n/a: why" or what went wrong. Heavy imports (verl, vLLM, torch)
are shared by all patches of a scenario, which is why a scenario and not a case has its own process.
"""

from __future__ import annotations

import importlib
import inspect
import json
import multiprocessing
import os
import pickle
import sys
import threading
import types


def _names() -> list[str]:
    from xpu_shim._targets import TARGETS

    return sorted(TARGETS)


def import_targets() -> dict[str, str]:
    """Import every target module; returns those this environment has not, with the error."""
    problems = {}
    for name in _names():
        try:
            importlib.import_module(name)
        except Exception as error:
            problems[name] = f"{type(error).__name__}: {error}"
    return problems


def ids() -> list[str]:
    from xpu_shim._targets import PATCHES

    return sorted(PATCHES)


def record(patch_id):
    from xpu_shim.core import ledger

    return ledger.record(patch_id)


def changes(patch_id):
    """The attributes a patch changed, as the engine recorded them."""
    for entry in record(patch_id).modules.values():
        if entry.install is not None:
            yield from entry.install._attributes


def functions(patch_id):
    """(change, original function, replacement function) for each replaced Python function."""
    for change in changes(patch_id):
        old, new = (getattr(value, "__func__", value) for value in (change.original, change.installed))
        if isinstance(new, types.FunctionType) and isinstance(old, types.FunctionType):
            yield change, old, new


def verdict(problems: list[str], looked: bool = True) -> str:
    return "; ".join(problems) if problems else "ok" if looked else "n/a: it replaces no Python function here"


def judge_state(patch_id: str, allowed: tuple[str, ...]) -> str:
    state = record(patch_id).state
    return "ok" if state in allowed else f"{record(patch_id)}, wanted one of {', '.join(allowed)}"


# -- the hook first, as in every user's process ------------------------------------------------------------------------


def hook_first() -> dict[str, dict[str, str]]:
    import verl  # noqa: F401

    import_targets()
    result = {"hook before import": {i: judge_state(i, ("armed", "applied", "retired", "skipped")) for i in ids()}}

    before = {i: [id(change.current()) for change in changes(i)] for i in ids()}
    from xpu_shim import _boot, _finder

    _boot.init()
    _finder.install()
    for name in _names():
        if name in sys.modules:
            _finder.run_hooks(name, sys.modules[name])
    result["init twice"] = {
        i: "ok" if before[i] == [id(change.current()) for change in changes(i)] else "a second layer" for i in ids()
    }

    result["one layer, same face"] = {}
    for patch_id in ids():
        problems, looked = [], False
        for change, old, new in functions(patch_id):
            looked = True
            imported = isinstance(change.parent, types.ModuleType) and old.__module__ != change.parent.__name__
            # A name that the module only imported is pickled by the place where it was replaced.
            for attribute in ("__doc__",) if imported else ("__module__", "__qualname__", "__name__", "__doc__"):
                if getattr(old, attribute) != getattr(new, attribute):
                    problems.append(f"{change.name}.{attribute} is {getattr(new, attribute)!r}")
            if inspect.signature(old) != inspect.signature(new):
                problems.append(f"{change.name}{inspect.signature(new)} instead of {inspect.signature(old)}")
        result["one layer, same face"][patch_id] = verdict(problems, looked)

    import cloudpickle

    result["pickle"] = {}
    for patch_id in ids():
        problems, looked = [], False
        for change, _, new in functions(patch_id):
            looked = True
            if isinstance(change.parent, type):
                new = getattr(change.parent, change.name)  # a method travels as its class and its name
            for kind in (pickle, cloudpickle):
                try:
                    data = kind.dumps(new)
                    back = pickle.loads(data)
                    # A function comes back as itself. cloudpickle ships a class method's function by value, upstream's
                    # too: bound to the same class is all that can be asked.
                    if back is not new and getattr(back, "__self__", new) is not getattr(new, "__self__", back):
                        problems.append(f"{kind.__name__} of {change.name} comes back as another object")
                except Exception as error:
                    problems.append(f"{kind.__name__} of {change.name}: {type(error).__name__}: {error}")
        result["pickle"][patch_id] = verdict(problems, looked)

    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=spawned, args=(queue,))
    child.start()
    states = queue.get(timeout=240)
    child.join(30)
    result["spawned child"] = {
        i: "ok" if states[i] == record(i).state else f"{states[i]} in the child, {record(i)} here" for i in ids()
    }
    return result


def spawned(queue) -> None:
    """In a spawned child, which inherits only the environment: import the targets in the opposite order."""
    for name in reversed(_names()):
        try:
            importlib.import_module(name)
        except Exception:
            continue
    queue.put({i: record(i).state for i in ids()})


# -- the targets first, as in a script that imports torch before verl --------------------------------------------------


def targets_first() -> dict[str, dict[str, str]]:
    os.environ["XPU_SHIM"] = "0"
    # Started with XPU_SHIM=0, so nothing is patched while these are imported.
    sys.path.insert(0, os.environ["SHIM_ROOT"])
    import_targets()
    raw = {}
    from xpu_shim.core.apply import load
    from xpu_shim.core.install import resolve

    for patch_id in ids():
        for target in load(patch_id).PATCH.parsed:
            module = sys.modules.get(target.module)
            if module is not None:
                try:
                    raw[str(target)] = resolve(module, target.qualname)[2]
                except AttributeError:
                    raw[str(target)] = None
    holders = types.ModuleType("a_module_that_copied_names")
    for key, value in raw.items():
        if isinstance(value, types.FunctionType) and "." not in key.partition(":")[2]:
            setattr(holders, key, value)
    sys.modules[holders.__name__] = holders

    os.environ["XPU_SHIM"] = "1"
    from xpu_shim import _boot

    _boot.init()
    result = {
        "hook after import": {i: judge_state(i, ("armed", "applied", "late", "retired", "skipped")) for i in ids()}
    }

    result["copied names re-bound"] = {}
    for patch_id in ids():
        problems, looked = [], False
        for change, old, new in functions(patch_id):
            if isinstance(change.parent, types.ModuleType):
                key = f"{change.parent.__name__}:{change.name}"
                looked = looked or hasattr(holders, key)
                if getattr(holders, key, new) is old:
                    problems.append(f"{key} is still the old one in a module that copied it")
        result["copied names re-bound"][patch_id] = verdict(problems, looked)

    from xpu_shim.core.apply import _apply_one, remove_patch

    applied = [i for i in ids() if record(i).state in ("applied", "late")]
    modules = {i: [n for n, e in record(i).modules.items() if e.install is not None] for i in applied}
    result["removed"] = {i: f"n/a: {record(i)}" for i in ids()}
    for patch_id in applied:
        try:
            remove_patch(patch_id)
        except Exception as error:
            result["removed"][patch_id] = f"{type(error).__name__}: {error}"
    for patch_id in applied:
        problems = []
        for target in load(patch_id).PATCH.parsed:
            module = sys.modules.get(target.module)
            if module is None:
                continue
            try:
                now = resolve(module, target.qualname)[2]
            except AttributeError:
                now = None
            if now is not raw[str(target)]:
                problems.append(f"{target} is not the original object")
            copied = getattr(holders, str(target), raw[str(target)])
            if copied is not raw[str(target)]:
                problems.append(f"{target} is not the original object in a module that copied it")
        if result["removed"][patch_id].startswith("n/a"):
            result["removed"][patch_id] = verdict(problems)

    def again(patch_id):
        for name in modules[patch_id]:
            _apply_one(patch_id, name, sys.modules[name], late=True)
        return record(patch_id).state

    def na():
        return {i: f"n/a: {record(i)}" for i in ids() if i not in applied}

    result["unsupported version"] = na()
    for patch_id in applied:
        roots = {name.partition(".")[0] for name in modules[patch_id]}
        versions = {root: getattr(sys.modules[root], "__version__", None) for root in roots}
        for root in roots:
            sys.modules[root].__version__ = "999.0"
        state = again(patch_id)
        for root, version in versions.items():
            sys.modules[root].__version__ = version
        wanted = state == "skipped" and record(patch_id).reason.startswith("version ")
        result["unsupported version"][patch_id] = "ok" if wanted else f"{record(patch_id)} with version 999.0"

    result["drifted target"] = na()
    for patch_id in applied:
        result["drifted target"][patch_id] = drifted(patch_id, modules[patch_id], again)

    result["applied again"] = na()
    for patch_id in applied:
        withdraw(patch_id)
        state = again(patch_id)
        result["applied again"][patch_id] = "ok" if state in ("applied", "late") else str(record(patch_id))
    return result


def withdraw(patch_id: str) -> None:
    """Take back what is still in place; a target that was deleted and put back counts as changed by somebody else."""
    for entry in record(patch_id).modules.values():
        if entry.install is not None:
            entry.install.abandon()
            entry.install = None


def drifted(patch_id: str, modules: list[str], again) -> str:
    """Give one target another signature, then take it away: both must be states, and nothing may be changed."""
    from xpu_shim.core.apply import load
    from xpu_shim.core.drift import load_lock
    from xpu_shim.core.install import resolve

    def another(something, entirely, different):
        raise AssertionError("never called")

    tried = False
    locked = {name for prints in load_lock().values() for name, item in prints.items() if item["signature"]}
    for target in load(patch_id).PATCH.parsed:
        # What a patch adds, and what a module only imports, has no signature in the lock to drift from.
        if target.module not in modules or str(target) not in locked:
            continue
        withdraw(patch_id)  # the try before may have applied it on another of its modules
        try:
            parent, name, value = resolve(sys.modules[target.module], target.qualname)
        except AttributeError:
            continue
        function = getattr(value, "__func__", value)
        if not isinstance(function, types.FunctionType) or name not in vars(parent):
            continue
        tried = True
        setattr(parent, name, another)
        state = again(patch_id)
        untouched = vars(parent)[name] is another
        setattr(parent, name, value)
        if state != "drifted" or not untouched:
            return f"{target} with another signature: {record(patch_id)}"
        if target.optional:
            continue
        delattr(parent, name)
        state = again(patch_id)
        setattr(parent, name, value)
        if state != "drifted" and not hasattr(parent, name):
            return f"{target} missing: {record(patch_id)}"
    return "ok" if tried else "n/a: no target of it is a Python function"


# -- eight threads ---------------------------------------------------------------------------------------------------


def threads() -> dict[str, dict[str, str]]:
    names = _names()
    gate = threading.Barrier(8)

    def work(offset: int) -> None:
        gate.wait(30)
        for name in names[offset:] + names[:offset]:
            try:
                importlib.import_module(name)
            except Exception:
                continue

    import verl  # noqa: F401 - the top: what follows is eight threads in its submodules and in vLLM

    workers = [threading.Thread(target=work, args=(i * len(names) // 8,), daemon=True) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(240)
    if any(worker.is_alive() for worker in workers):
        return {"eight threads": dict.fromkeys(ids(), "an import never ended")}
    import_targets()
    verdicts = {}
    for patch_id in ids():
        problems = []
        for change, _, new in functions(patch_id):
            inner = getattr(new, "__wrapped__", None)
            if change.current() is not change.installed:
                problems.append(f"{change.name} is not the replacement")
            if getattr(inner, "__dict__", {}).get("_xpu_shim_patch") == patch_id:
                problems.append(f"{change.name} is wrapped twice")
        state = judge_state(patch_id, ("armed", "applied", "retired", "skipped"))
        verdicts[patch_id] = state if state != "ok" else verdict(problems)
    return {"eight threads": verdicts}


# -- switched off ------------------------------------------------------------------------------------------------------


def disabled() -> dict[str, dict[str, str]]:
    import verl  # noqa: F401

    import_targets()
    verdicts = {}
    for patch_id in ids():
        entry = record(patch_id)
        wanted = entry.state in ("armed", "skipped") and not list(changes(patch_id))
        verdicts[patch_id] = "ok" if wanted else str(entry)
    return {"XPU_SHIM_DISABLE": verdicts}


def reload() -> dict[str, dict[str, str]]:
    import verl  # noqa: F401

    import_targets()
    verdicts = {i: f"n/a: {record(i)}" for i in ids()}
    for patch_id in ids():
        for name, entry in record(patch_id).modules.items():
            if entry.install is None or not name.startswith(("verl.utils", "torch.xpu")):
                # Executing torch's C-bound or Ray's core modules twice is not something upstream survives.
                continue
            module = sys.modules[name]
            importlib.reload(module)
            ok = record(patch_id).state == "applied" and record(patch_id).modules[name].install.intact(module)
            verdicts[patch_id] = "ok" if ok else f"{record(patch_id)} after a reload of {name}"
    return {"reload": verdicts}


if __name__ == "__main__":
    scenario = {function.__name__: function for function in (hook_first, targets_first, threads, disabled, reload)}[
        sys.argv[1]
    ]
    outcome = scenario()
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(outcome, file)
