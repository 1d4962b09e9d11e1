"""xpu-shim's second start-up path, for places where `.pth` files are not read (PYTHONPATH, `pip --target`, a zip).

It arms the same hook as `xpu_shim.pth` and then runs the `sitecustomize` that would have run without this one. Only
`sys.path` entries after this file's own are searched: two packages that both chained "everywhere but here" would call
each other for ever.

Every interpreter start runs this, also when the shim is switched off, so each name and code object in it was weighed
(tests/benchmarks/startup.py): no functions, and `sys` by way of `os`.
"""

import os

if os.environ.get("XPU_SHIM") != "0":
    try:
        import xpu_shim._boot  # noqa: F401
    except Exception:
        pass  # a half-uninstalled shim must not cost every interpreter start two lines on stderr

# In a virtual environment site-packages is the last entry: nothing follows that could hold another sitecustomize.
if os.sys.path[-1] != __file__[:-17]:  # less "/sitecustomize.py"
    entries = list(map(os.path.abspath, os.sys.path))
    here = os.path.dirname(os.path.abspath(__file__))
    rest = here in entries and entries[entries.index(here) + 1 :]
    spec = rest and os.sys.modules["_frozen_importlib_external"].PathFinder.find_spec("sitecustomize", rest)
    # A namespace package (a mere folder of that name) has no origin.
    if spec and spec.origin and spec.origin != __file__:
        # Run under its own name, as it would have been; errors in it are its own and site reports them as usual.
        module = os.sys.modules["sitecustomize"] = os.sys.modules["_frozen_importlib"].module_from_spec(spec)
        spec.loader.exec_module(module)
