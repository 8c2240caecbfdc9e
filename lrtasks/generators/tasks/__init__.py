"""The built-in tasks: one module per family."""
