"""Benchmarks and experiments: commands anyone can run."""
