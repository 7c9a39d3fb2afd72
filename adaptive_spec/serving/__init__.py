"""Continuous batching without torch: sequences, paged KV accounting and the step scheduler."""
