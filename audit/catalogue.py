"""All rules by id: those of audit/rules, and those about suppressions."""

from __future__ import annotations

from types import ModuleType

from audit import suppress
from audit.rules import RULES
from audit.settings import Settings

Rule = ModuleType | suppress.Hygiene


def rules() -> dict[str, Rule]:
    """Every rule, sorted by id."""
    return dict(sorted((RULES | suppress.RULES).items()))


def is_on(rule: Rule) -> bool:
    """Whether it runs without being asked for."""
    return getattr(rule, "ON", True)


def chosen(settings: Settings) -> dict[str, Rule]:
    """The rules that the settings ask for."""
    known = rules()
    asked = set(settings.select) or {rule for rule, about in known.items() if is_on(about)}
    return {
        rule: about
        for rule, about in known.items()
        if rule in (asked | set(settings.extend_select)) - set(settings.ignore)
    }
