"""Patches on verl."""
