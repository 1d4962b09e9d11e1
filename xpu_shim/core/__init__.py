"""The patch engine: declarations, what happened to them, install and remove. Knows nothing of Intel, verl or torch."""
