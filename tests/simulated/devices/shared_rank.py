"""Two ranks that both take themselves for local rank 0, as ranks do whose launcher does not count them."""

from __future__ import annotations

import os
import sys

os.environ["LOCAL_RANK"] = "0"
sys.argv = [sys.argv[0], "cpu:gloo,xpu:xccl"]

from group_rank import main  # noqa: E402

main()
