"""``python -m lrtasks``."""

from lrtasks.cli import main

main()
