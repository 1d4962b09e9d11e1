"""A trainer beside vLLM: another process that holds memory of the same simulated card and is told to release it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys, torch
blocks = []
for line in sys.stdin:
    wanted = int(line) // 32
    del blocks[wanted:]
    torch.xpu.empty_cache()
    blocks += [torch.empty(32 << 20, dtype=torch.uint8, device="xpu:0") for _ in range(wanted - len(blocks))]
    print(len(blocks) * 32, flush=True)
"""


class CoTenant:
    """Its memory is accounted by the simulator, between processes, as a card's is."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hold(self, mib: int) -> None:
        """Allocate or release until it holds so many MiB (a multiple of 32)."""
        self.process.stdin.write(f"{mib}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if answer.strip() != str(mib):
            raise RuntimeError(f"the co-tenant was to hold {mib} MiB and answered {answer!r}")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)
