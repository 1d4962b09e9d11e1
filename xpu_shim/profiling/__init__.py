"""Profiling verl on Intel GPUs: ITT ranges, VTune's collection, torch's profiler. Nothing is imported here."""
