"""Small sources whose lines say themselves where a rule must find something: `<<<` above a note, `<<< note` a note."""

import re

from Cython import __version__

from audit.facts import Options
from audit.graph import link
from audit.rule import Severity
from audit.rules import RULES
from audit.tree import analyse

BEFORE_3_3 = tuple(map(int, __version__.split(".")[:2])) < (3, 3)
HEADER = "# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False\n"


def reported(folder, rule, source, cplus=None, others=()):
    """What a rule reports: line -> severity. `others` are (file name, source) beside it."""
    modules = []
    for name, text in [("example.pyx", HEADER + source), *others]:
        path = folder / name
        path.write_text(text)
    for path in sorted(folder.glob("*.p*")):
        analysed = analyse(str(path), Options(cplus=cplus, include_path=(str(folder),)))
        assert not analysed.errors, analysed.errors
        modules.append(analysed.module)
    project = link(modules)
    found = {}
    for module in modules:
        for finding in RULES[rule].check(module, project):
            assert finding.rule == rule
            assert finding.message.endswith(".") and finding.hint.endswith(".")
            if finding.path.endswith("example.pyx"):
                found.setdefault(finding.line, set()).add(finding.severity is Severity.NOTE)
    return found


def check(folder, rule, source, cplus=None, others=()):
    """Asserts that a rule reports the marked lines and no others."""
    lines = (HEADER + source).splitlines()
    wanted = {number: {False} for number, line in enumerate(lines, 1) if re.search(r"<<<(?! note)", line)}
    notes = {number for number, line in enumerate(lines, 1) if "<<< note" in line}
    found = reported(folder, rule, source, cplus, others)
    above = {number for number, severities in found.items() if False in severities}
    assert above == set(wanted), f"{rule}: {sorted(above)}, marked {sorted(wanted)}\n{source}"
    quiet = {number for number, severities in found.items() if True in severities}
    assert notes <= quiet, f"{rule}: notes in {sorted(quiet)}, marked {sorted(notes)}\n{source}"
