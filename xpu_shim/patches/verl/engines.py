"""verl's FSDP engines are found for device xpu."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.engines",
    targets=(
        "verl.workers.engine.base:EngineRegistry.register",
        "verl.workers.engine.base:EngineRegistry.get_engine_cls",
    ),
    why=(
        "The FSDP engines are registered for cuda and npu only: `ValueError: No engine registered for device='xpu', "
        "vendor='intel', model_type='language_model', backend='fsdp'`, in 0.7.1 and 0.8.0 `AssertionError: Unknown "
        "device: xpu`. An Intel registration made too early stops verl-hardware-plugin's own: `AssertionError: The "
        "key(device-vendor: ('xpu', 'intel')) has been already registed!`"
    ),
    how=(
        "When an engine is looked up, the stock FSDP class is registered for xpu, unless somebody else registered one; "
        "and it makes way if somebody does so later."
    ),
    upstream=("https://github.com/volcengine/verl/pull/7371", "https://github.com/verl-project/verl-hardware-plugin"),
    remove_when="verl registers its FSDP engines for xpu.",
    versions={"verl": ("0.7.1", "0.10")},
)


def apply(install: Install) -> None:
    install.replace("EngineRegistry.register", yielding)
    install.replace("EngineRegistry.get_engine_cls", provided)
    install.on_remove(lambda: withdraw_all(install.module.EngineRegistry))


def yielding(original):
    def register(cls, model_type, backend, device="cuda", *args, **kwargs):
        from xpu_shim.devices import engines

        engines.withdraw(cls, model_type, backend, device)
        return original(cls, model_type, backend, device, *args, **kwargs)

    return register


def provided(original):
    def get_engine_cls(cls, model_type, backend):
        from xpu_shim.devices import engines

        engines.provide(cls, model_type, backend)
        return original(cls, model_type, backend)

    return get_engine_cls


def withdraw_all(registry):
    from xpu_shim.devices import engines

    for model_type, backends in registry._engines.items():
        engines.withdraw(registry, model_type, list(backends), engines.DEVICE)
