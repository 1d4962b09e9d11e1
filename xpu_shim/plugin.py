"""Entry point for verl (`verl.plugins`) and vLLM (`vllm.general_plugins`): the safety net behind the start-up files.

verl loads the named object and does not call it, vLLM calls it, so importing this module already installs the hook.
Where the start-up files ran, this does nothing.
"""

import os

from xpu_shim._boot import init

if os.environ.get("XPU_SHIM") != "0":
    init()
