"""Arguments, output and exit status of nogil-audit."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from audit.errors import BadInput, near
from audit.output import FORMATS

if TYPE_CHECKING:
    from audit.check import Audit
    from audit.settings import Settings

COLORS = ("auto", "always", "never")
PROGRAM = "nogil-audit"


class _Parser(argparse.ArgumentParser):
    """Raises BadInput where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see {PROGRAM} --help")

    def options(self) -> list[str]:
        return [text for action in self._actions for text in action.option_strings]


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        import Cython

        try:
            own = version("freecfr")
        except PackageNotFoundError:  # a checkout that nobody installed
            own = "(not installed)"
        print(f"{PROGRAM} {own}, Cython {Cython.__version__}, Python {sys.version.split(' (')[0]}")
        parser.exit()


def _choice(name: str, values: Sequence[str]):
    def check(text: str) -> str:
        if text not in values:
            raise argparse.ArgumentTypeError(
                f"there is no {name} {text!r}: {near(text, values)}there are {', '.join(values)}"
            )
        return text

    return check


def _jobs(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} jobs cannot work; give a whole number from 1 to 1024")
    return int(text)


def _parser() -> _Parser:
    parser = _Parser(
        prog=PROGRAM,
        description="Read Cython source and say what keeps it from running on many threads at once.",
        usage="%(prog)s PATH... [options]",
        epilog="status: 0 nothing above `note` found, 1 something found, 2 bad usage, or something not audited\n"
        "\nexample:\n  nogil-audit . --statistics",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("paths", metavar="PATH", nargs="*", help="a .pyx, .pxd or .py file, or a folder; what git ignores is left out")
    add("--format", metavar="FORMAT", type=_choice("format", FORMATS), default="text", help=", ".join(FORMATS))
    add("--output", metavar="FILE", help="write there instead of to standard output")
    add("--select", metavar="IDS", action="append", default=[], help="run these rules only; separated by commas")
    add("--extend-select", metavar="IDS", action="append", default=[], help="run these too, such as ones that are off")
    add("--ignore", metavar="IDS", action="append", default=[], help="leave these rules out")
    add("--baseline", metavar="FILE", help="report only what FILE does not accept")
    add("--write-baseline", metavar="FILE", help="accept today's findings: write them to FILE, and end with status 0")
    add("--explain", metavar="RULE", help="say what a rule means, with an example; `all` lists the rules")
    add("--statistics", action="store_true", help="count findings by rule and by file, and functions by verdict")
    add("--notes", action="store_true", help="text: show notes as findings are, not one line a rule and file")
    add(
        "--include-path", metavar="DIR", action="append", default=[], help="search .pxd and .pxi there; may be repeated"
    )
    add("--exclude", metavar="PATTERN", action="append", default=[], help="leave out paths in folders; may be repeated")
    add("-X", metavar="NAME=VALUE", action="append", default=[], dest="directives", help="a directive of the build")
    add("-E", metavar="NAME=VALUE", action="append", default=[], dest="environment", help="a value for DEF and IF")
    add("--jobs", metavar="N", type=_jobs, default=0, help="files at once; by default one per processor")
    add("--color", metavar="WHEN", type=_choice("colour", COLORS), default="auto", help=", ".join(COLORS))
    add("--version", action=_Version, nargs=0, help="say which versions these are")
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments. Raises BadInput, one sentence, naming near matches of what is unknown."""
    parser = _parser()
    arguments, unknown = parser.parse_known_intermixed_args(list(argv))
    if unknown:
        option = unknown[0].partition("=")[0]
        raise BadInput(f"there is no option {option}: {near(option, parser.options())}see {PROGRAM} --help")
    if not arguments.paths and arguments.explain is None:
        raise BadInput(f"name the files or folders to audit, such as `{PROGRAM} .`; see {PROGRAM} --help")
    return arguments


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings file's and the command line's together. Raises BadInput for what cannot be used."""
    from audit import catalogue, settings, tree

    known = list(catalogue.rules())
    file = settings.find(arguments.paths)
    base = settings.Settings() if file is None else settings.read(file, known)
    parsed: dict[str, object] = {}
    for name, value in settings.assignments(arguments.directives, "-X").items():
        try:
            parsed |= tree.directive(name, value)
        except BadInput as error:
            raise BadInput(f"-X {name}={value}: {error}") from None
    for folder in arguments.include_path:
        if not os.path.isdir(folder):
            raise BadInput(f"--include-path {folder}: there is no such folder")
    environment = {
        name: _plain_value(value) for name, value in settings.assignments(arguments.environment, "-E").items()
    }
    select = settings.rule_ids(",".join(arguments.select), known, "--select")
    return replace(
        base,
        select=select or base.select,
        extend_select=(() if select else base.extend_select)
        + settings.rule_ids(",".join(arguments.extend_select), known, "--extend-select"),
        ignore=(() if select else base.ignore) + settings.rule_ids(",".join(arguments.ignore), known, "--ignore"),
        exclude=base.exclude + tuple(arguments.exclude),
        include_path=tuple(arguments.include_path) + base.include_path,
        directives=tuple((dict(base.directives) | parsed).items()),
        said_by=tuple((dict(base.said_by) | dict.fromkeys(parsed, "-X")).items()),
        compile_time_env=tuple((dict(base.compile_time_env) | environment).items()),
        baseline=arguments.baseline if arguments.baseline is not None else base.baseline,
        jobs=arguments.jobs,
    )


def _plain_value(text: str) -> object:
    """A value as Python writes it, else the text itself."""
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def explain(name: str) -> str:
    """What `--explain` prints."""
    from audit import catalogue

    known = catalogue.rules()
    if name == "all":
        wide = max(map(len, known))
        marks = {rule: "" if catalogue.is_on(about) else " (off by default)" for rule, about in known.items()}
        return "".join(
            f"{rule:<{wide}}  {known[rule].SEVERITY:<6}  {known[rule].TITLE}{marks[rule]}\n" for rule in known
        )
    if name not in known:
        raise BadInput(f"--explain: there is no rule {name!r}: {near(name, known)}`--explain all` lists them")
    rule = known[name]
    off = "" if catalogue.is_on(rule) else f"\nIt is off by default; --extend-select {name} runs it.\n"
    why = rule.WHY.strip()
    return (
        f"{name} ({rule.SEVERITY}): {rule.TITLE}\n\n{why}\n{off}\nFound in:\n\n{_indented(rule.BAD)}\n"
        f"Not found in:\n\n{_indented(rule.GOOD)}\n"
        f"To keep a line as it is: # {PROGRAM}: ignore[{name}] why it is safe there\n"
    )


def _indented(source: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in source.strip("\n").split("\n"))


def _wants_color(when: str) -> bool:
    if when != "auto":
        return when == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _rendered(report: Audit, arguments: argparse.Namespace) -> str:
    if arguments.format == "json":
        from audit.output import json

        return json.render(report)
    if arguments.format == "sarif":
        from audit.output import sarif

        return sarif.render(report)
    if arguments.format == "html":
        from audit.output import html

        return html.render(report)
    from audit.output import text

    color = arguments.output is None and _wants_color(arguments.color) or arguments.color == "always"
    return text.render(report, color, arguments.statistics, arguments.notes)


def run(arguments: argparse.Namespace) -> int:
    """Do what the arguments ask for; the exit status. Raises BadInput."""
    if arguments.explain is not None:
        print(explain(arguments.explain), end="")
        return 0
    from audit import baseline
    from audit.check import audit
    from audit.output.text import error_line

    settings = settings_of(arguments)
    if arguments.write_baseline is not None:
        settings = replace(settings, baseline="")
    report = audit(arguments.paths, settings)
    if not report.files or arguments.format != "text":
        for error in report.errors:
            print(f"{PROGRAM}: {error_line(error)}", file=sys.stderr)
    if arguments.write_baseline is not None:
        count = baseline.write(arguments.write_baseline, report.findings, report.sources)
        print(f"{PROGRAM}: {arguments.write_baseline} accepts {count:,} findings", file=sys.stderr)
        return 2 if report.errors else 0
    if report.files or arguments.format != "text":
        rendered = _rendered(report, arguments)
        if arguments.output is None:
            print(rendered, end="", flush=True)
        else:
            _write(arguments.output, rendered)
    return report.status


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise BadInput(f"--output {file}: it cannot be written ({error.strerror}); name another file") from None


def main(argv: Sequence[str] | None = None) -> int:
    """The program; the exit status. Without `argv` the process is taken to be its own."""
    if argv is None:
        # Cython's trees are millions of small objects that live as long as their file: looking for circles in them
        # less often saves a tenth of the time.
        gc.set_threshold(500_000)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # paths and terminals that know less than Unicode
    try:
        return run(parse(sys.argv[1:] if argv is None else argv))
    except BadInput as error:
        print(f"{PROGRAM}: {str(error).rstrip('.')}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
