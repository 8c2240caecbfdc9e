"""``python -m`` this in place of ``lrtasks``: the same command, which dies with the process that started it.

Standard input is a pipe whose other end the starting process holds and never writes to. It closes when that process
does so, or when it dies, whatever it dies of; then this process and those that it started are killed. A run therefore
never goes on beside the one that takes its place.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def main() -> None:
    """Run the command line on the end of a tether."""
    threading.Thread(target=_end_with_starter, args=(os.dup(sys.stdin.fileno()),), daemon=True).start()
    # nothing else is to wait for what never comes
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    from lrtasks.cli import main as run

    run()


def _end_with_starter(tether: int) -> None:
    os.read(tether, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()
