"""The one `sys.meta_path` finder: lets the usual finders find a target module, then runs its patches after execution.

The loader keeps its type (`python -m`, `inspect`, `pkgutil` and `pkg_resources` look at it): only an instance attribute
`exec_module` is put on it. Other finders are asked directly instead of through `importlib.util.find_spec`, which would
import parent packages under a lock and deadlock when a parent waits for a thread that imports the target. No lock is
held while hooks run.
"""

import os
import sys
from _thread import get_ident

from xpu_shim._targets import TARGETS

#: Errors of hooks, newest last, as (module name, exception); shown by `xpu-shim status`.
errors: list = []


class Finder:
    """Finds target modules through the finders behind it and arms their loaders."""

    def __init__(self, targets):
        self.targets = targets
        self._busy = set()

    def find_spec(self, name, path=None, target=None):
        if name not in self.targets:
            return None
        # A finder behind us may ask for the same name again (import hooks of other tools do): answer "not here" then,
        # but only to the thread that is already inside.
        key = (name, get_ident())
        if key in self._busy:
            return None
        self._busy.add(key)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                if finder is self or find is None:
                    continue
                spec = find(name, path, target)
                if spec is not None:
                    break
            else:
                return None
        finally:
            self._busy.discard(key)
        arm_loader(spec.loader, name)
        return spec


def arm_loader(loader, name):
    """Make `loader` run the hooks of `name` after it executed that module; one that cannot carry it is left alone."""
    if loader is None or isinstance(loader, type) or not hasattr(loader, "exec_module"):
        return
    armed = getattr(loader, "_xpu_shim_armed", None)
    if armed is not None:
        armed.add(name)  # one loader object may serve many modules
        return
    names = {name}
    execute = loader.exec_module

    def exec_module(module):
        execute(module)
        executed = module.__name__
        if executed in names:
            # Some packages put another object in `sys.modules` while they execute; that one is what importers get.
            run_hooks(executed, sys.modules.get(executed, module))

    try:
        loader._xpu_shim_armed = names
        loader.exec_module = exec_module
    except AttributeError:
        errors.append((name, TypeError(f"loader {type(loader).__name__} takes no attributes; {name} stays unpatched")))


def run_hooks(name, module):
    """Hand an executed target to the engine; its failure never becomes the import's, unless XPU_SHIM_STRICT=1."""
    try:
        from xpu_shim import runtime

        runtime.on_import(name, module)
    except Exception as error:
        errors.append((name, error))
        if os.environ.get("XPU_SHIM_STRICT") == "1":
            raise


def install():
    """Put the finder first on `sys.meta_path` and hand over the targets that were imported before it. Idempotent."""
    if any(type(finder) is Finder for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Finder(TARGETS))
    # A package sorts before the modules in it, so it is patched first, as it is when imported in order.
    for name in sorted(TARGETS.intersection(sys.modules)):
        run_hooks(name, sys.modules[name])
