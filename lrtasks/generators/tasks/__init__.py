"""The built-in tasks: one module and one presets file each."""
