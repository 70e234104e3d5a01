"""Every sharing rule on its own examples, which no other rule of races finds fault with where they are good."""

import pytest

from audit.facts import Options
from audit.graph import link
from audit.rule import Severity
from audit.rules import RULES
from audit.tree import analyse

MINE = ["borrowed-ref", "cpp-cross", "critical-section-released", "dict-iteration", "errno-reuse", "inconsistent-guard",
        "lazy-cache", "memoryview-rebind", "module-state", "placement", "shared-attr", "shared-attr-c", "shared-write",
        "static-local", "unsafe-c"]  # fmt: skip


def findings(folder, source, rules):
    path = folder / "example.pyx"
    path.write_text(source)
    analysed = analyse(str(path), Options())
    assert not analysed.errors
    project = link([analysed.module])
    return [finding for rule in rules for finding in RULES[rule].check(analysed.module, project)]


@pytest.mark.parametrize("rule", MINE)
def test_the_bad_example_is_found_and_the_good_one_is_clean(tmp_path, rule):
    assert findings(tmp_path, RULES[rule].BAD, [rule])
    assert not [found for found in findings(tmp_path, RULES[rule].GOOD, MINE) if found.severity is not Severity.NOTE]
    assert not findings(tmp_path, RULES[rule].GOOD, [rule])
