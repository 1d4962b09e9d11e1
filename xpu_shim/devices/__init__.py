"""The right device, backend and card for every process; called by patches, importable and testable alone."""
