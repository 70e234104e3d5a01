"""One audit from paths to a report: discover, analyse side by side, link, ask the rules, suppress, compare."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from audit import baseline as baselines
from audit import catalogue, suppress
from audit.build import Build, Used
from audit.facts import Analysed, Module, Options
from audit.files import discover
from audit.rule import Finding, Report, Severity
from audit.settings import Settings
from audit.sources import Sources
from audit.workers import each


@dataclass
class Audit(Report):
    """A report with what it rests on. `findings` are those that count: neither suppressed nor accepted."""

    sources: Sources = field(default_factory=Sources)
    modules: list[Module] = field(default_factory=list)
    suppressed: list[tuple[Finding, str]] = field(default_factory=list)  # with the reason given
    accepted: list[Finding] = field(default_factory=list)  # by the baseline
    stale: list[tuple[baselines.Key, int]] = field(default_factory=list)  # of the baseline: gone, and how many
    baseline: str = ""
    used: list[Used] = field(default_factory=list)  # directives of the build
    unread: list[str] = field(default_factory=list)  # of build scripts, one sentence each
    order: Any = None  # graph.Order
    rules: dict[str, catalogue.Rule] = field(default_factory=dict)  # that ran, by id
    settings_file: str = ""

    @property
    def lines(self) -> int:
        """Lines of the audited files."""
        return sum(len(module.lines) for module in self.modules)

    @property
    def status(self) -> int:
        """The exit status: 2 where something could not be audited, 1 where something above `note` was found, else 0."""
        if self.errors:
            return 2
        return int(any(finding.severity is not Severity.NOTE for finding in self.findings))


def audit(
    paths: Sequence[str],
    settings: Settings,
    *,
    analyse: Callable[[str, Options], Analysed] | None = None,
    link: Callable[[Iterable[Module]], Any] | None = None,
) -> Audit:
    """Audit files and folders. What cannot be audited is in the report's errors.

    Raises BadInput for a baseline that cannot be read. `analyse` and `link` stand for tree.analyse and graph.link.
    """
    accepted = baselines.read(settings.baseline) if settings.baseline else None
    found = discover(paths, settings.exclude)
    if analyse is None or link is None:
        from audit import graph, tree  # only now: they take Cython's compiler along

        analyse, link = analyse or tree.analyse, link or graph.link
    build = Build(settings)
    tasks = [(path, build.options(path)) for path in found.files]
    results = each(analyse, tasks, settings.jobs)

    modules = [result.module for result in results if result.module is not None]
    errors = {*found.errors, *(error for result in results for error in result.errors)}
    project = link(modules)
    chosen = catalogue.chosen(settings)
    report = Audit(
        files=[os.fspath(path) for path in found.files],
        functions=sorted(project.verdicts()),
        errors=sorted(errors),
        sources=Sources({module.path: module.lines for module in modules}),
        modules=modules,
        baseline=settings.baseline,
        used=sorted(build.used),
        unread=sorted(build.unread),
        order=project.order(),
        rules=chosen,
        settings_file=settings.file,
    )
    findings = _ask(modules, project, chosen)
    _settle(report, findings, accepted)
    return report


def _ask(modules: list[Module], project: Any, chosen: dict[str, catalogue.Rule]) -> list[Finding]:
    """What the rules find, each once: files that share an include or a .pxd report it together."""
    findings: set[Finding] = set()
    for module in modules:
        for rule in chosen.values():
            if not isinstance(rule, suppress.Hygiene):
                findings.update(rule.check(module, project))
    return sorted(findings)


def _settle(report: Audit, findings: list[Finding], accepted: dict[baselines.Key, int] | None) -> None:
    """Take out of the findings what is suppressed and what the baseline accepts."""
    own = {path for module in report.modules for path in (module.path, module.pxd, *module.includes) if path}
    findings, report.suppressed = suppress.apply(findings, own, report.sources, catalogue.rules(), report.rules)
    report.findings = [finding for finding in findings if finding.rule in report.rules]
    if accepted is not None:
        folder = os.path.dirname(os.path.abspath(report.baseline))
        compared = baselines.compare(report.findings, accepted, report.sources, folder, own)
        report.findings, report.accepted, report.stale = compared.new, compared.accepted, compared.stale
