"""The rules, one a file: whatever module stands in this folder is a rule.

Each has ID, SEVERITY, TITLE (one line), WHY (what it means on a free-threaded build), BAD and GOOD (complete sources
that the rule finds and does not find), `check(module, project)`, and ON = False where it is off unless asked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

RULES: dict[str, ModuleType] = {
    rule.ID: rule
    for rule in (
        importlib.import_module(f"{__name__}.{found.name}")
        for found in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name)
    )
}
