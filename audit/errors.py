"""What goes wrong with what a person gave, as opposed to what is found in the sources."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """Something given cannot be used. Its text is one sentence, fit to be shown as it is."""


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? ` where something known is close to `name`, else nothing."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(match) for match in matches)}? " if matches else ""
