"""The environment policy is put into effect before torch loads its libraries."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="torch.launch_environment",
    # Imported at the very start of `import torch`, before any native library is loaded.
    targets=("torch.version:__version__",),
    why=(
        "ONEAPI_DEVICE_SELECTOR, exported by conda's activation scripts, by Ray up to 2.57 or by hand, breaks every "
        "process that runs model code: oneDNN's attention fails with `could not create a primitive`, Triton with `0 "
        "active drivers ([])`, and bare ids make `import torch` fail. Some oneCCL releases need a setting to be safe."
    ),
    how=(
        "Removes the selector, keeps what it restricted as ZE_AFFINITY_MASK, and sets what the policy of "
        "`xpu_shim.intel.environment` sets; a value the user set is never changed."
    ),
    upstream=(
        "https://github.com/ray-project/ray/pull/64440",
        "https://github.com/uxlfoundation/oneCCL/issues/212",
        "https://github.com/IntelPython/dpctl/issues/1406",
    ),
    remove_when="no supported Ray writes the selector and no supported torch needs a oneCCL setting.",
    versions={"torch": ("2.11", "2.16")},
)


def apply(install: Install) -> None:
    import os

    from xpu_shim.devices import launch

    before = dict(os.environ)
    changes = launch.prepare(install.module.__version__)

    def undo():
        for change in changes:
            if change.name in before:
                os.environ[change.name] = before[change.name]
            else:
                os.environ.pop(change.name, None)

    install.on_remove(undo)
