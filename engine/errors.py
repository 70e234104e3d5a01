"""What goes wrong with what a person gave, as opposed to what goes wrong inside."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """Something given cannot be used. Its text is one sentence a problem, fit to be shown as it is."""


class ConfigError(BadInput):
    """Settings that cannot be used. `problems` has one sentence each."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class RunError(BadInput):
    """A run's folder that cannot be used as asked."""


class CheckpointError(BadInput):
    """A checkpoint that cannot be written or read."""


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? ` where something known is close to `name`, else nothing."""
    matches = difflib.get_close_matches(str(name), list(known), n=2, cutoff=0.6)
    return f"did you mean {' or '.join(repr(match) for match in matches)}? " if matches else ""
