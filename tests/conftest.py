"""For all tests."""

import os

# Unbuffered, `print` writes a line and its end separately, and the lines of two ranks run into each other.
os.environ.pop("PYTHONUNBUFFERED", None)

# On a machine with few, busy cores Ray's workers, which it gives the lowest priority, starve, and its daemons need more than
# the 30 seconds it allows them.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
