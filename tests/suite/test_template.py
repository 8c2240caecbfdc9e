"""Commands that fork from a process which has loaded everything."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import paused
import pytest

from lrtasks.files import held
from lrtasks.processes import Template, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="processes fork on Linux only")]


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    made = Template(1)
    yield made
    made.close()


def test_forked_commands_end_as_others_do(template: Template) -> None:
    for words, code, said in [
        (("list",), 0, ""),
        (("eval", "--model", "dlr"), 2, "lrtasks: Missing option '--task'.\n"),
        (("describe", "nothing"), 2, "unknown"),
    ]:
        (found, text), alone = run_command(words, template=template), run_command(words)
        assert (found, text) == alone
        assert found == code
        assert said in text
    assert template._process.poll() is None, "the template has ended, so the commands did not fork from it"


def test_a_forked_command_is_stopped(template: Template, tmp_path: Path) -> None:
    words = ("eval", "--model", "dlr", "--task", "shift", "--steps", "100000000", "--out", str(tmp_path))
    assert run_command(words, template=template, time_limit=0.0) == (None, "")
    stop = threading.Event()

    def stop_at_first_sight() -> None:
        paused.wait_for(lambda: any(tmp_path.rglob("lock")))
        stop.set()

    threading.Thread(target=stop_at_first_sight).start()
    assert run_command(words, template=template, stop=stop)[0] is None
    (lock,) = tmp_path.rglob("lock")
    with held(lock, "the run", patience=10):  # on a busy machine, the system takes a moment to end its workers
        pass


def test_a_template_that_was_killed_is_done_without() -> None:
    template = Template()
    template._process.kill()
    assert run_command(("list",), template=template) == (0, "")
    template.close()


def test_a_template_ends_with_its_parent() -> None:
    script = "from lrtasks.processes import Template; t = Template(); print(t._process.pid, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    paused.wait_for(lambda: not Path(f"/proc/{pid}").exists())
