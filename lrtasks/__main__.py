"""``python -m lrtasks``: the command line."""

from lrtasks.cli import main
from lrtasks.processes import watch_parent

watch_parent()
main()
