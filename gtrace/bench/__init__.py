"""Shared parts of the programs in ``benchmarks/``: workloads, libraries side by side, timing, and comparisons."""
