"""The ``vllm.platform_plugins`` entry point.

vLLM chooses its platform by probing. With simulated XPUs in the process its XPU platform is probed too, although the vLLM
installed is the CPU build. A platform named by a plugin goes before the probed ones and makes the choice certain.
"""

from .settings import enabled


def platform() -> str | None:
    """The class vLLM is to use, or None to let it choose."""
    return "vllm.platforms.cpu.CpuPlatform" if enabled() else None
