"""xpu-shim's second start-up path, for places where `.pth` files are not read (PYTHONPATH, `pip --target`, a zip).

It arms the same hook as `xpu_shim.pth` and then runs the `sitecustomize` that would have run without this one. Only
`sys.path` entries after this file's own are searched: two packages that both chained "everywhere but here" would call
each other for ever.
"""

import os
import sys


def _arm():
    if os.environ.get("XPU_SHIM") == "0":
        return
    try:
        from xpu_shim import _boot

        _boot.init()
    except Exception:
        pass  # a half-uninstalled shim must not cost every interpreter start two lines on stderr


def _chain():
    # String operations only: this runs at every start, also when the shim is switched off.
    here = __file__.rpartition("/")[0]
    if here not in sys.path:
        here = os.path.abspath(here)
        entries = [os.path.abspath(entry or os.curdir) for entry in sys.path]
        if here not in entries:
            return
        rest = sys.path[entries.index(here) + 1 :]
    else:
        rest = sys.path[sys.path.index(here) + 1 :]
    if not rest:
        return
    spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    # Run under its own name, as it would have been; errors in it are its own and are reported by site as usual.
    module = type(sys)("sitecustomize")
    module.__file__, module.__spec__, module.__loader__ = spec.origin, spec, spec.loader
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_arm()
_chain()
