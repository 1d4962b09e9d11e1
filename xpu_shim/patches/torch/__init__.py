"""Patches on PyTorch."""
