"""For all tests."""

import os

# Unbuffered, `print` writes a line and its end separately, and the lines of two ranks run into each other.
os.environ.pop("PYTHONUNBUFFERED", None)
