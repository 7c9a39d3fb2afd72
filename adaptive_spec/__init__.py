"""Speculative decoding in which every sequence gets its own depth at every step."""

__version__ = "0.1.0"
