"""Models that misbehave; tests load them in separate processes through entry points."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from lrtasks.config import parameter
from lrtasks.errors import UsageError
from lrtasks.models.base import ModelConfig


class Rogue(nn.Module):
    """A mixer that returns its input, and calls ``act`` after ``healthy`` training steps."""

    def __init__(self, healthy: int, act: Callable[[], None]) -> None:
        super().__init__()
        self.healthy, self.act = healthy, act

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.training:
            self.healthy -= 1
        if self.healthy < 0:
            self.act()
        return x


@dataclass(frozen=True)
class RogueModel(ModelConfig):
    """Base class of the models that misbehave."""

    healthy: int = parameter(0, "training steps before it misbehaves", at_least=0)

    def mixer(self, length: int, causal: bool) -> nn.Module:
        return Rogue(self.healthy, self.act)

    @staticmethod
    def act() -> None:
        """Misbehave."""


class Raising(RogueModel):
    """Raises an error."""

    @staticmethod
    def act() -> None:
        raise RuntimeError("no more of this")


class Exiting(RogueModel):
    """Exits without a message."""

    @staticmethod
    def act() -> None:
        os._exit(3)


class Dying(RogueModel):
    """Is killed with SIGKILL, as when memory runs out."""

    @staticmethod
    def act() -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Refusing(RogueModel):
    """Raises UsageError in training because its settings are impossible."""

    @staticmethod
    def act() -> None:
        raise UsageError("these settings cannot be")


class Hanging(RogueModel):
    """Never returns, if ``$ROGUE_CHILD`` is set; nor does its child process, whose id it writes to that file."""

    @staticmethod
    def act() -> None:
        if "ROGUE_CHILD" not in os.environ:
            return
        child = os.fork()
        if child:
            Path(os.environ["ROGUE_CHILD"]).write_text(str(child))
        while True:
            time.sleep(1)
