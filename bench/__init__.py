"""Benchmarks: each states a bar, and failing it fails the run."""
