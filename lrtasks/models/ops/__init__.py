"""Shared numerical building blocks: small functions and modules, each with its formula in the docstring."""
