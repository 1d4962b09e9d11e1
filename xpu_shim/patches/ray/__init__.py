"""Patches on Ray."""
