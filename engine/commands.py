"""What each command does: find its input, call the engine, print what came out."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path
from typing import Any

from engine.checkpoint import list_checkpoints
from engine.errors import BadInput, RunError
from engine.interrupts import Interrupts
from engine.metrics import dumps, is_number, read_metrics


def say(text: str) -> None:
    """A line for people, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def train(args: argparse.Namespace) -> int:
    """Train, or go on; 0, 1, 130 or 143."""
    from engine import doctor
    from engine.display import Display
    from engine.learner import TrainingError
    from engine.runs import RunFolder
    from engine.trainer import Trainer

    board_type = _tensorboard() if args.tensorboard else None
    notice = doctor.gil_notice(args.allow_gil)  # after every import of a run, since it is they that switch the GIL on
    overrides = list(args.set)
    overrides += [f"{key}={value}" for key in ("threads", "workers", "device") if (value := getattr(args, key))]
    with Interrupts() as interrupts:
        try:
            if args.resume:
                folder = RunFolder.resume(args.run, args.config, overrides)
            else:
                folder = RunFolder.create(args.run, args.config, overrides)
        except KeyboardInterrupt:
            say("freecfr: interrupted; nothing was started")
            return interrupts.status
        with folder:
            try:
                say(f"run: {folder.path}")
                for text in (notice, _surplus(folder.config), _not_reproducible(folder.config)):
                    if text:
                        say(text)
                with Display(folder.config, sys.stderr) as display, ExitStack() as stack:
                    watchers: list[Callable[[dict], object]] = [display.show]
                    if board_type is not None:
                        board = stack.enter_context(closing(board_type(folder.path / "tensorboard")))
                        watchers.append(board.show)
                    trainer = _started(folder, args.resume, watchers, Trainer)
                    metrics = trainer.run()
            except KeyboardInterrupt:
                _say_how_to_resume(folder.path, "terminated" if interrupts.status == 143 else "interrupted")
                return interrupts.status or 130
            except _NotStarted as error:
                raise error.problem from None
            except (BadInput, TrainingError) as error:
                for line in str(error).splitlines():
                    say(f"freecfr: {line}")
                _say_how_to_resume(folder.path, "failed")
                return 1
            return _finished(folder, metrics, args.json)


def _tensorboard() -> Any:
    try:
        from engine.tensorboard import TensorBoard
    except ImportError:
        raise BadInput(
            "--tensorboard needs tensorboardX; install the extra: pip install freecfr[tensorboard]."
        ) from None
    return TensorBoard


def _surplus(config: Any) -> str | None:
    """What there is to say where more threads were asked for than can work at once."""
    blocks = math.ceil(config.traversal.count / config.traversal.block) * (1 + (config.order == "simultaneous"))
    if config.threads <= blocks:
        return None
    return (
        f"threads is {config.threads}, but at most {blocks} blocks of traversals can run at once: "
        f"{config.threads - blocks} threads idle while they run; results are the same"
    )


def _not_reproducible(config: Any) -> str | None:
    if config.overlap != "free":
        return None
    return "overlap is 'free': which weights a traversal meets is a matter of timing, so that no other run has its bits"


class _NotStarted(Exception):
    """Bad input came to light before the first iteration."""

    def __init__(self, problem: BadInput) -> None:
        self.problem = problem


def _started(folder: Any, resume: bool, watchers: list[Callable[[dict], object]], trainer: Any) -> Any:
    def show(metrics: dict) -> None:
        for watcher in watchers:
            watcher(metrics)

    try:
        try:
            return trainer(folder.config, run_dir=folder.path, on_iteration=show, resume=resume)
        except (MemoryError, RuntimeError) as error:
            # torch has no error of its own for memory that the machine refuses.
            if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
                raise
            raise BadInput(
                "the run needs more memory than this machine gives it; lower network.hidden, network.layers, "
                "training.batch_size or memory.capacity."
            ) from None
    except BadInput as problem:
        if not resume:
            folder.discard()
        raise _NotStarted(problem) from None


def _say_how_to_resume(run: Path, what: str) -> None:
    checkpoints = list_checkpoints(run / "checkpoints")
    if checkpoints:
        iteration = int(checkpoints[0].name.rpartition("-")[2])
        say(f"freecfr: {what}; iteration {iteration} is on disk: {checkpoints[0]}")
    else:
        say(f"freecfr: {what}; no iteration was complete, so the run will start again from its first")
    say(f"go on with: freecfr train {run / 'config.toml'} --run {run} --resume")


def _finished(folder: Any, metrics: dict[str, Any] | None, as_json: bool) -> int:
    """What was learned, in words or as JSON, and its pictures."""
    from engine.judge import solvable
    from engine.report import write_report

    run = folder.path
    if not metrics:
        # A run that had reached its last iteration before.
        metrics = (read_metrics(run / "metrics.jsonl") or [{}])[-1]
    checkpoints = list_checkpoints(run / "checkpoints")
    try:
        page = write_report([run], run / "report")
    except RunError as error:
        # What was learned is on disk; only its pictures are not.
        say(f"freecfr: {error}")
        page = None
    if as_json:
        print(dumps({**metrics, "run": str(run), "checkpoint": str(checkpoints[0]) if checkpoints else None}))
        return 0
    print(f"trained to iteration {metrics.get('iteration')}: {run}")
    if is_number(metrics.get("exploitability")) and (tree := solvable(folder.config.load_game())) is not None:
        print(
            f"exploitability (NashConv / 2): {tree.nash_conv(tree.uniform()) / 2:.4f} before, playing uniformly; "
            f"{metrics['exploitability']:.4f} after, exact"
        )
    for match in metrics.get("matches", []):
        print(f"against {match['opponent']}: wins {match['win_rate']:.1%}, score {match['score_mean']:+.2f}")
    if page is not None:
        print(f"learning curve and more: {page}")
    print(f"next: freecfr eval {run}")
    return 0


def evaluate(args: argparse.Namespace) -> int:
    """Exact figures where the game is small enough, and matches."""
    from engine.agent import load_agent
    from engine.evaluation import evaluate_strategy
    from engine.judge import solvable
    from engine.matches import play_match
    from threading_runtime.gil import threads_default
    from threading_runtime.pool import Pool

    agent = load_agent(args.run)
    opponents = _opponents(agent.game, args.opponent)
    result: dict[str, Any] = {"run": str(args.run), "game": agent.game.name}
    with Interrupts() as interrupts, Pool(args.threads or threads_default()) as pool:
        try:
            if (tree := solvable(agent.game)) is not None:
                # In a worker, where torch's own threads are 1: the same bits as while training, on any machine.
                result |= pool.map(lambda _: evaluate_strategy(tree, agent.strategy_on(tree)), [None])[0]
            result["matches"] = [
                play_match(agent.game, agent, bot, games=args.games, seed=args.seed, pool=pool) for bot in opponents
            ]
        except KeyboardInterrupt:
            say("freecfr: interrupted; nothing was evaluated to its end")
            return interrupts.status
    if args.json:
        print(dumps(result))
        return 0
    if tree is not None:
        print(
            f"{agent.game.name}: exploitability {result['exploitability']:.5f} (NashConv {result['nash_conv']:.5f}), "
            f"game value {result['game_value']:+.5f}, exact"
        )
    for match in result["matches"]:
        low, high = match["win_rate_ci95"]
        print(
            f"{match['opponent']:>16}: wins {match['win_rate']:.1%} (95 %: {low:.1%} to {high:.1%}), score "
            f"{match['score_mean']:+.2f} (sd {match['score_sd']:.2f}), {match['games']} games"
        )
    return 0


def _opponents(game: Any, names: list[str]) -> list[Any]:
    """The bots of these names, or all that play the game. BadInput where one is unknown or does not."""
    from pyx.bots import BOTS, make_bot

    bots = []
    for name in names or BOTS:
        try:
            bot = make_bot(name)
            bot.check(game)
            bots.append(bot)
        except ValueError as error:
            if names:
                raise BadInput(f"{error}.") from None
    return bots


def bench(args: argparse.Namespace) -> int:
    """Measure, and print a table or JSON."""
    from engine import bench as benches

    overrides = [*args.set, *([f"device={args.device}"] if args.device else [])]
    result = benches.run(args.name, args.threads, overrides)
    if args.json:
        print(dumps(result))
        return 0
    print(" ".join(f"{key}={value}" for key, value in result["machine"].items()))
    for _, rows in groupby(result["rows"], key=lambda row: row["figure"]):
        _print_table(list(rows))
    return 0


def _print_table(rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    # What is the same everywhere is said once, so that the table fits a terminal.
    common = [column for column in columns if len(rows) > 1 and len({row.get(column) for row in rows}) == 1]
    if common:
        print("in every row:", " ".join(f"{column}={_cell(rows[0].get(column))}" for column in common))
    columns = [column for column in columns if column not in common]
    table = [columns, *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def report(args: argparse.Namespace) -> int:
    """Draw the pictures and the summary page of runs."""
    from engine.report import write_report

    runs = [Path(run) for run in args.runs]
    for run in runs:
        if not run.is_dir():
            raise RunError(f"{run} is not a run's folder; give a folder that `freecfr train` made.")
    page = write_report(runs, Path(args.out) if args.out else runs[0] / "report")
    print(page)
    return 0


def verify(args: argparse.Namespace) -> int:
    """Compute a run's last iterations again; 0 where they have the same bits, else 1."""
    from engine.verify import verify

    with Interrupts() as interrupts:
        try:
            result = verify(Path(args.run), args.threads, tell=say)
        except KeyboardInterrupt:
            say("freecfr: interrupted; nothing was verified to its end")
            return interrupts.status
    if args.json:
        print(dumps(result))
        return 0 if result["match"] else 1
    what = f"iterations {result['from_iteration'] + 1} to {result['to_iteration']} of {result['run']}, computed again"
    if result["match"]:
        print(f"{what}: the same bits")
        return 0
    place = result["parts_at"]
    print(
        f"{what}: other bits, first at iteration {place['iteration']}, {place['what']}: "
        f"{place['recorded']} before, {place['replayed']} now"
    )
    return 1


def doctor(args: argparse.Namespace) -> int:
    """Examine the machine and this Python."""
    from engine.config import Config
    from engine.doctor import examine

    result = examine(Config.from_toml(args.config) if args.config else None)
    if args.json:
        print(dumps(result))
        return 0
    width = max(map(len, result))
    for key, value in result.items():
        if key != "advice":
            print(f"{key:{width}}  {_said(value)}")
    for text in result["advice"]:
        print(f"- {text}")
    return 0


def _said(value: Any) -> str:
    """A value of doctor's, for people."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(part)}" for name, part in value.items() if part)
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,.0f}" if isinstance(value, float) else str(value)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": train,
    "eval": evaluate,
    "bench": bench,
    "report": report,
    "verify": verify,
    "doctor": doctor,
}
