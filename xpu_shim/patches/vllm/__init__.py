"""Patches on vLLM."""
