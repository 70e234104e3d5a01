"""What goes wrong with what a person gave, as opposed to what goes wrong inside."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# What a person reads of one problem, in characters, and of how many problems.
LONGEST = 2000
MOST_PROBLEMS = 50


class BadInput(ValueError):
    """Something given cannot be used. Its text is one sentence a problem, fit to be shown as it is."""

    def __init__(self, text: str) -> None:
        super().__init__(shortened(text))


class ConfigError(BadInput):
    """Settings that cannot be used. `problems` has one sentence each."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        every = [problems] if isinstance(problems, str) else list(problems)
        self.problems = [shortened(problem) for problem in every[:MOST_PROBLEMS]]
        if len(every) > MOST_PROBLEMS:
            self.problems.append(f"and {len(every) - MOST_PROBLEMS} more; correct these first.")
        ValueError.__init__(self, "\n".join(self.problems))


class RunError(BadInput):
    """A run's folder that cannot be used as asked."""


class CheckpointError(BadInput):
    """A checkpoint that cannot be written or read."""


def shortened(text: str) -> str:
    """`text`, or its beginning and its end where it is long: what it quotes may be of any length."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? ` where something known is close to `name`, else nothing."""
    matches = difflib.get_close_matches(str(name), list(known), n=2, cutoff=0.6)
    return f"did you mean {' or '.join(repr(match) for match in matches)}? " if matches else ""
