"""``python -m lrtasks``: the command line."""

from lrtasks.cli import main
from lrtasks.processes import end_with_parent

end_with_parent()
main()
