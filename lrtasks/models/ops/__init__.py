"""Shared numerics: each a small function or module with its formula in the docstring."""
