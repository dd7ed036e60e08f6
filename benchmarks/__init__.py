"""Benchmarks: ratios inside one run on one machine. ``python -m benchmarks --help``."""
