"""Patches on tensordict."""
