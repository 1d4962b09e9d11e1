"""What vLLM refuses in a configuration reaches the driver."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="vllm.config_errors",
    targets=("vllm.engine.arg_utils:EngineArgs.create_engine_config",),
    why=(
        "vLLM's configuration errors hold objects that cannot be pickled. Ray cannot send them from the server's "
        "process, and the driver shows `TypeError: cannot pickle 'pydantic_core._pydantic_core.ArgsKwargs' object` "
        "instead of the setting that is wrong."
    ),
    how="An error that cannot be pickled is raised again as a ValueError or RuntimeError with the same text.",
    upstream=("https://github.com/kahlun/verl/pull/1", "https://github.com/pydantic/pydantic-core/pull/1119"),
    remove_when="pydantic's ValidationError can be pickled with any input.",
    versions={"vllm": ("0.17", "0.34")},
    processes=("worker", "rollout"),
    required=False,
)


def apply(install: Install) -> None:
    install.replace("EngineArgs.create_engine_config", portable_errors)


def portable_errors(original):
    def create_engine_config(self, *args, **kwargs):
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            from xpu_shim.doctor.explain import explain
            from xpu_shim.rollout.errors import portable

            replacement = portable(error)
            explain(replacement)
            if replacement is error:
                raise
            raise replacement from error

    return create_engine_config
