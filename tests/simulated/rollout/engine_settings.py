"""Run as a program: what one vLLM release makes of an engine's settings on its platform for Intel GPUs, as JSON.

    SIMXPU=1 python engine_settings.py /path/with/vllm MODEL_FOLDER

The release's own `AsyncEngineArgs.create_engine_config`, `Executor.get_class` and platform class decide; no engine is
started. Stdout's last line has the executor for each backend, what sleep mode does, and how an error travels.
"""

from __future__ import annotations

import json
import pickle
import sys

from card import intel_platform


def main(release: str, model: str) -> dict:
    if release:
        sys.path.insert(0, release)
    intel_platform()
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.executor.abstract import Executor

    small = {"model": model, "max_model_len": 128, "enforce_eager": True, "dtype": "float32"}

    def config(**more):
        return AsyncEngineArgs(**{**small, **more}).create_engine_config()

    def failure(**more) -> Exception | None:
        try:
            config(**more)
        except Exception as error:
            return error
        return None

    def travels(error: Exception) -> list[str]:
        """Type and text as the driver gets them, or why they cannot be sent."""
        try:
            copy = pickle.loads(pickle.dumps(error))
        except Exception as refusal:
            return ["", f"{type(refusal).__name__}: {refusal}"]
        return [type(copy).__name__, str(copy)]

    result: dict = {"version": vllm.__version__}
    result["executors"] = {
        str(backend): Executor.get_class(config(distributed_executor_backend=backend)).__name__
        for backend in ("mp", "uni", None)
    }
    from xpu_shim.rollout.sleep import obstacle

    asleep = failure(enable_sleep_mode=True)
    result["sleep_refused"] = None if asleep is None else str(asleep)
    result["obstacle"] = obstacle()
    wrong = {"max_model_len": 1 << 20}
    result["text"] = str(failure(**wrong))
    result["stock_travels"] = travels(failure(**wrong))
    from xpu_shim.core.apply import apply_patch

    apply_patch("vllm.config_errors")
    result["patched_travels"] = travels(failure(**wrong))
    return result


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(sys.argv[1], sys.argv[2])) + "\n")
