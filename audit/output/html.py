"""One page that holds everything: an index, each file's lines shaded by how much they touch the GIL, its findings.

It needs no network and no script, and follows the reader's choice of light or dark.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from html import escape
from pathlib import PurePath

from audit.check import Audit
from audit.facts import Check, Function, Gil, Module
from audit.output import counts
from audit.rule import Finding, Severity, Verdict, Where

# How much one line weighs against another: taking the GIL each time, a Python operation, a check that seldom fails.
_TAKES, _PYTHON, _SELDOM = 6, 2, 1
_SHADES = (1, 3, 6, 12)  # weights from which a line is shaded one step darker
# Above this many lines the files are closed at first, so that the page opens at once.
_OPEN_LINES = 3000


def weights(module: Module) -> dict[str, Counter[int]]:
    """By path, how much each line touches the GIL; lines that do not are absent."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for function in [*module.functions, *([module.toplevel] if module.toplevel else [])]:
        for where, weight in _touches(function):
            found[where.path][where.line] += weight
    return found


def _touches(function: Function) -> Iterator[tuple[Where, int]]:
    """Places and their weights."""
    for operation in function.operations:
        if operation.python:
            yield operation.where, _PYTHON
    for python_call in function.python_calls:
        yield python_call.where, _PYTHON
    for block in function.gil_blocks:
        yield block.where, _TAKES
    for raised in function.raises:
        yield raised.where, _PYTHON
    for call in function.calls:
        if call.with_gil:
            yield call.where, _TAKES
        elif call.check is Check.ALWAYS and call.context.gil is Gil.RELEASED:
            yield call.where, _TAKES
        elif call.check in (Check.SENTINEL, Check.CPP) and call.context.gil is Gil.RELEASED:
            yield call.where, _SELDOM
    for path in function.error_paths:
        if path.context.gil is Gil.RELEASED:
            yield path.where, _SELDOM
    for view in function.views:
        yield view.where, _SELDOM
    for parallel in function.parallels:
        if parallel.takes_gil:
            yield parallel.where, _TAKES


def verdict(function: Verdict) -> tuple[str, str]:
    """A function's verdict in a word, and as a class of the page's style."""
    if function.declared_nogil and function.could_be_nogil:
        return ("nogil, GIL-free" if function.gil_free else "nogil, takes the GIL"), (
            "free" if function.gil_free else "takes"
        )
    if function.could_be_nogil:
        return ("could be nogil, GIL-free" if function.gil_free else "could be nogil, takes the GIL"), (
            "could" if function.gil_free else "takes"
        )
    return "blocked", "blocked"


def render(audit: Audit) -> str:
    """The page, ending in a newline. Whatever comes from the sources is escaped."""
    paths = _paths(audit)
    shading: dict[str, Counter[int]] = defaultdict(Counter)
    for module in audit.modules:
        for path, found in weights(module).items():
            for line, weight in found.items():
                # A file that several include is shaded as by the worst of them.
                shading[path][line] = max(shading[path][line], weight)
    opened = audit.lines <= _OPEN_LINES
    body = [
        "<h1>nogil audit</h1>",
        f"<p>{escape(counts.summary(audit))}</p>",
        _totals(audit),
        _errors(audit),
        _index(audit, paths),
        _order(audit, paths),
        _build(audit),
        _legend(),
        *(_file(audit, number, path, shading[path], opened) for path, number in paths.items()),
    ]
    return _PAGE.replace("%BODY%", "\n".join(part for part in body if part))


def _paths(audit: Audit) -> dict[str, int]:
    """Files that the page shows, numbered: those audited, and others that something was found in."""
    others = {finding.path for finding in audit.findings} | {function.path for function in audit.functions}
    return {path: number for number, path in enumerate(sorted({*audit.files, *others}), 1)}


def _link(paths: dict[str, int], path: str, line: int, text: str) -> str:
    if path not in paths:
        return escape(text)
    return f'<a href="#f{paths[path]}l{line}">{escape(text)}</a>'


def _totals(audit: Audit) -> str:
    cells = [(str(severity), f"{count:,}") for severity, count in counts.by_severity(audit).items()]
    total = counts.functions(audit)
    cells += [
        (name, counts.share(total[name], total["functions"]))
        for name in ("declared nogil", "could be nogil", "GIL-free")
    ]
    return (
        '<dl class="totals">'
        + "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in cells)
        + "</dl>"
    )


def _errors(audit: Audit) -> str:
    if not audit.errors:
        return ""
    rows = "".join(
        f"<li><code>{escape(error.path)}:{error.line}:{error.column}</code> {escape(error.kind)}: "
        f"{escape(error.reason)}</li>"
        for error in audit.errors
    )
    return f"<h2>Not audited</h2><ul class='errors'>{rows}</ul>"


def _index(audit: Audit, paths: dict[str, int]) -> str:
    found: dict[str, Counter[Severity]] = defaultdict(Counter)
    for finding in audit.findings:
        found[finding.path][finding.severity] += 1
    functions = defaultdict(list)
    for function in audit.functions:
        functions[function.path].append(function)
    head = "".join(f"<th class='n'>{name}</th>" for name in (*Severity, "functions", "could be nogil", "GIL-free"))
    rows = []
    for path, number in paths.items():
        cells = [f"{found[path][severity] or ''}" for severity in Severity]
        own = functions[path]
        cells.append(f"{len(own) or ''}")
        cells += [
            f"{sum(part):,}" if own else ""
            for part in ([one.could_be_nogil for one in own], [one.gil_free for one in own])
        ]
        row = "".join(f"<td class='n'>{cell}</td>" for cell in cells)
        rows.append(f'<tr><td><a href="#f{number}">{escape(path)}</a></td>{row}</tr>')
    return f"<h2>Files</h2><table><tr><th>file</th>{head}</tr>{''.join(rows)}</table>"


def _order(audit: Audit, paths: dict[str, int]) -> str:
    order = audit.order
    if order is None or not (order.today or order.later):
        return ""
    today = "".join(
        f"<li>{_link(paths, step.path, step.line, step.name)} <small>{escape(step.path)}:{step.line}</small></li>"
        for step in order.today
    )
    later = "".join(
        f"<li>{_link(paths, step.path, step.line, step.name)} <small>{escape(step.path)}:{step.line}</small>"
        + ("" if tuple(step.after) == (step.name,) else f" after {escape(', '.join(step.after))}")
        + "</li>"
        for step in order.later
    )
    share = "".join(
        f"<li>{_link(paths, path, 1, path)}: {count:,} ({100 * part:.0f} %)</li>" for path, count, part in order.share
    )
    parts = [
        f"<details><summary>{title}</summary><ul>{items}</ul></details>"
        for title, items in (
            (f"{counts.plural(len(order.today), 'function')} can be marked nogil today", today),
            (f"{counts.plural(len(order.later), 'function')} after blockers are gone, fewest first", later),
            ("Where the blockers are", share),
        )
        if items
    ]
    return f"<h2>Order of work</h2>{''.join(parts)}"


def _build(audit: Audit) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(used.name)}={escape(used.value)}</code></td><td>{escape(used.source)}</td></tr>"
        for used in audit.used
    )
    unread = "".join(f"<li>{escape(sentence)}</li>" for sentence in audit.unread)
    if not rows and not unread:
        return ""
    return (
        "<details><summary>Build directives that were used</summary>"
        f"<table>{rows}</table>{f'<p>Not read:</p><ul>{unread}</ul>' if unread else ''}</details>"
    )


def _legend() -> str:
    shades = "".join(f"<span class='w{step}'>&nbsp;{step}&nbsp;</span>" for step in range(1, len(_SHADES) + 1))
    marks = "".join(
        f"<span class='v {style}'>{word}</span>"
        for word, style in (
            ("nogil, GIL-free", "free"),
            ("could be nogil, GIL-free", "could"),
            ("takes the GIL", "takes"),
            ("blocked", "blocked"),
        )
    )
    return (
        f"<h2>Sources</h2><p class='legend'>Lines that touch the GIL, a little to much: {shades} Functions: {marks}</p>"
    )


def _file(audit: Audit, number: int, path: str, shading: Counter[int], opened: bool) -> str:
    findings: dict[int, list[Finding]] = defaultdict(list)
    for finding in audit.findings:
        if finding.path == path:
            findings[finding.line].append(finding)
    functions: dict[int, list[Verdict]] = defaultdict(list)
    for function in audit.functions:
        if function.path == path:
            functions[function.line].append(function)
    lines = audit.sources.lines(path)
    while lines and not lines[-1]:
        lines = lines[:-1]
    rows = [
        _row(number, line, text, shading[line], functions[line], findings[line])
        for line, text in enumerate(lines or ("",), 1)
    ]
    state = " open" if opened else ""
    return (
        f'<details class="file" id="f{number}"{state}><summary>{escape(str(PurePath(path)))}</summary>'
        f'<div class="code">{"".join(rows)}</div></details>'
    )


def _row(number: int, line: int, text: str, weight: int, functions: list[Verdict], findings: list[Finding]) -> str:
    shade = sum(weight >= step for step in _SHADES)
    style = f" w{shade}" if shade else ""
    marks = "".join(
        f'<span class="v {verdict(function)[1]}" title="{escape(function.name)}">{escape(verdict(function)[0])}</span>'
        for function in functions
    )
    row = (
        f'<div class="l{style}" id="f{number}l{line}"><a class="n" href="#f{number}l{line}">{line}</a>'
        f"<code>{escape(text)}</code>{marks}</div>"
    )
    return row + "".join(
        f'<div class="finding {finding.severity}"><b>{finding.severity}</b> <code>{escape(finding.rule)}</code> '
        f"{escape(finding.message)} <i>{escape(finding.hint)}</i></div>"
        for finding in findings
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>nogil audit</title>
<style>
:root { color-scheme: light dark; --ink: #1d2329; --paper: #fff; --quiet: #667; --line: #dde1e6; --code: #f7f8fa;
  --w1: #fff6d6; --w2: #ffe7a3; --w3: #ffd06b; --w4: #ffb03b;
  --blocks: #b3261e; --slows: #8a5a00; --races: #7b2fa8; --note: #2b5f8a; --free: #1b6e3c; --could: #2b5f8a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e6ea; --paper: #15181c; --quiet: #98a2ad; --line: #333a42;
  --code: #1b1f24; --w1: #2e2a17; --w2: #4a3d12; --w3: #6b520c; --w4: #8f6800;
  --blocks: #ff8a80; --slows: #f3c35a; --races: #d5a0f0; --note: #8fc3ee; --free: #7bd69c; --could: #8fc3ee; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 0 .5rem } h2 { font-size: 1.15rem; margin: 1.6rem 0 .5rem }
a { color: var(--note) } small { color: var(--quiet) }
code, .code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", Consolas, monospace }
table { border-collapse: collapse } th, td { padding: .15rem .7rem; border-bottom: 1px solid var(--line);
  text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
dl.totals { display: flex; flex-wrap: wrap; gap: .4rem 2rem; margin: 0 }
dl.totals dt { color: var(--quiet); font-size: .85rem } dl.totals dd { margin: 0; font-size: 1.15rem }
summary { cursor: pointer } details.file { margin: 1rem 0; border: 1px solid var(--line); border-radius: 6px }
details.file > summary { padding: .4rem .8rem; font-weight: 600; position: sticky; top: 0; background: var(--paper);
  border-radius: 6px; border-bottom: 1px solid var(--line) }
.code { background: var(--code); overflow-x: auto; padding: .3rem 0 }
.l { display: flex; min-height: 1.5em; width: max-content; min-width: 100% } .l code { white-space: pre; tab-size: 4 }
.l { scroll-margin-top: 3.5em } .l:target { outline: 2px solid var(--note); outline-offset: -2px }
.l .n { flex: none; width: 4.5em; padding-right: 1em; text-align: right; color: var(--quiet); text-decoration: none;
  user-select: none }
.w1 { background: var(--w1) } .w2 { background: var(--w2) } .w3 { background: var(--w3) } .w4 { background: var(--w4) }
.v { flex: none; margin-left: 1.2em; padding: 0 .6em; border: 1px solid; border-radius: 1em; font: 11px/1.6 system-ui,
  sans-serif; align-self: center; white-space: nowrap; background: var(--paper) }
.v + .v { margin-left: .4em }
.v.free { color: var(--free) } .v.could { color: var(--could) } .v.takes { color: var(--slows) }
.v.blocked { color: var(--blocks) }
.finding { margin: .15rem 1rem .3rem 4.5em; padding: .25rem .7rem; border-left: 3px solid var(--c);
  background: var(--paper); font: 13px/1.45 system-ui, sans-serif; position: sticky; left: 4.5em; max-width: 60rem }
.finding b { color: var(--c) } .finding i { color: var(--quiet); font-style: normal }
.blocks { --c: var(--blocks) } .slows { --c: var(--slows) } .races { --c: var(--races) } .note { --c: var(--note) }
.legend span { margin: 0 .15rem } .legend .v { margin: 0 .3rem; padding: .1rem .6em } .errors { color: var(--blocks) }
@media print { details.file > summary { position: static } }
</style>
</head>
<body>
%BODY%
</body>
</html>
"""
