"""What the tests of commands share."""

from __future__ import annotations

import pytest
from pretend import Pretend

from lrtasks.suite import backends


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """The backend that all commands of a test get."""
    backend = Pretend()
    monkeypatch.setattr(backends, "make_backend", lambda *_, **__: backend)
    return backend
