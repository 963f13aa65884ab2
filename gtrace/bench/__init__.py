"""What the programs in ``benchmarks/`` share: workloads, libraries side by side, timing, and comparing two runs."""
