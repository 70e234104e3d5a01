"""The command line: parsing, messages and exit statuses. What commands do is in commands.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from engine.bench import BENCHES
from engine.bench import check as check_bench
from engine.errors import BadInput, near

RUN_HELP = "a run's folder, one of its checkpoints, or an exported model file"
SET_HELP = "change a setting of the config, e.g. --set training.batch_size=2048; may be repeated"

EXAMPLES = {
    "train": "freecfr train configs/smoke.toml --run runs/smoke",
    "eval": "freecfr eval runs/smoke",
    "bench": "freecfr bench forward --threads 1 --threads 2",
    "report": "freecfr report runs/smoke --out runs/smoke/report",
    "verify": "freecfr verify runs/smoke",
    "doctor": "freecfr doctor",
}


class Usage(BadInput):
    """The command line cannot be understood."""


class _Parser(argparse.ArgumentParser):
    """Raises Usage where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message}; see {self.prog} --help")

    def options(self) -> list[str]:
        return [text for action in self._actions for text in action.option_strings]


def _threads(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text!r} threads cannot work; give a whole number from 1 to 4096")
    return int(text)


def _games(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 2 <= int(text) <= 1 << 30 or int(text) % 2:
        raise argparse.ArgumentTypeError(
            f"{text!r} games cannot be played, each deal being played twice; give an even number from 2 to {1 << 30}"
        )
    return int(text)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {(1 << 63) - 1}")
    return int(text)


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    top = _Parser(
        prog="freecfr",
        description="Train and judge card-game agents with Deep CFR, on every core from one process.",
        epilog="`freecfr COMMAND --help` says more.\n\nexample:\n  freecfr train configs/smoke.toml",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    def add(name: str, text: str) -> _Parser:
        return commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=f"example:\n  {EXAMPLES[name]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    train = add("train", "train an agent by a config")
    train.add_argument("config", metavar="CONFIG", help="a TOML file, e.g. configs/kuhn.toml")
    train.add_argument("--threads", metavar="N", help="worker threads; by default one per physical core")
    train.add_argument(
        "--workers", metavar="KIND", help="what runs blocks: threads, processes-pickle or processes-shared-memory"
    )
    train.add_argument("--device", metavar="D", help="auto, cpu, cuda or cuda:N")
    train.add_argument("--run", metavar="DIR", help="the run's folder; by default runs/<config>-<UTC time>")
    train.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help=SET_HELP)
    train.add_argument("--resume", action="store_true", help="go on with the run in --run")
    train.add_argument("--allow-gil", action="store_true", help="start even if something switched the GIL on")
    train.add_argument("--tensorboard", action="store_true", help="also write RUN/tensorboard (needs tensorboardX)")

    evaluate = add("eval", "judge an agent: exactly in small games, and in matches")
    evaluate.add_argument("run", metavar="RUN", help=RUN_HELP)
    evaluate.add_argument("--opponent", metavar="NAME", action="append", default=[], help="may be repeated")
    evaluate.add_argument("--games", metavar="N", type=_games, default=1000, help="games against each opponent")
    evaluate.add_argument("--threads", metavar="N", type=_threads, help="worker threads")
    evaluate.add_argument("--seed", metavar="S", type=_seed, default=0, help="seed of the deals (default 0)")

    bench = add("bench", f"measure this machine: {', '.join(BENCHES)}")
    bench.add_argument("name", metavar="NAME", help="what to measure")
    bench.add_argument("--threads", metavar="N", type=_threads, action="append", default=[], help="may be repeated")
    bench.add_argument("--device", metavar="D", help="forward: auto, cpu, cuda or cuda:N")
    bench.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help=SET_HELP)

    report = add("report", "draw the curves of runs")
    report.add_argument("runs", metavar="RUN", nargs="+", help="runs' folders; several are drawn together")
    report.add_argument("--out", metavar="DIR", help="where to; by default RUN/report of the first run")

    verify = add("verify", "compute a run's last iterations again and compare their bits")
    verify.add_argument("run", metavar="RUN", help="a run's folder, or the checkpoint to come to from the one before")
    verify.add_argument("--threads", metavar="N", type=_threads, help="worker threads")

    doctor = add("doctor", "say what this machine and this Python offer, and what is in the way")

    doctor.add_argument("config", metavar="CONFIG", nargs="?", help="whose run's memory to compute (default settings)")

    for parser in (train, evaluate, bench, verify, doctor):
        parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    return top, dict(commands.choices)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line. Raises Usage, one sentence, naming near matches of what is unknown."""
    top, commands = _parsers()
    command = argv[0] if argv else ""
    if not command:
        raise Usage(f"no command given; there are: {', '.join(commands)}; see freecfr --help")
    if not command.startswith("-") and command not in commands:
        raise Usage(f"there is no command {command!r}; {near(command, commands)}there are: {', '.join(commands)}")
    args, unknown = top.parse_known_args(list(argv))
    if unknown:
        text = unknown[0].partition("=")[0]
        options = commands[args.command].options() if args.command else top.options()
        if text.startswith("-"):
            raise Usage(
                f"{command} has no option {text!r}; {near(text, options)}it has: "
                f"{', '.join(option for option in options if option.startswith('--'))}"
            )
        raise Usage(f"{command} has no use for {text!r}; see freecfr {command} --help")
    if args.command == "bench":
        check_bench(args.name)
    if args.command == "train" and args.resume and args.run is None:
        raise Usage("--resume needs --run DIR, the folder of the run to go on with")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit status."""
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        # Commands import torch, which parsing and --help do without.
        from engine import commands

        return commands.COMMANDS[args.command](args)
    except BadInput as error:
        for line in str(error).splitlines():
            print(f"freecfr: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("freecfr: interrupted; nothing was started", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone; Python would complain again when it flushes at exit.
        sys.stdout = None
        return 1
