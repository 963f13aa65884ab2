"""Shared parts of the programs beside this folder: workloads, libraries side by side, timing, and comparisons."""
