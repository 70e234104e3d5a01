"""`freecfr bench learning`: exploitability over time in the small games, by each way of sampling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from engine.bench import say, summary
from engine.config import Config
from engine.trainer import Trainer

CONFIGS = Path(__file__).parent.parent / "configs"
GAMES = ("kuhn", "leduc")
ALGORITHMS = ("external_sampling", "outcome_sampling")
SEEDS = (0, 1, 2)

# What runs of all seeds have in common.
_SAME = ("game", "algorithm", "threads", "parameters", "iteration", "traversals", "infosets")


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each game, algorithm and evaluated iteration: its figures are over runs from three seeds.

    Runs are those of configs/kuhn.toml and configs/leduc.toml; game.name or algorithm among the overrides keeps to one.
    """
    chosen = dict(override.split("=", 1) for override in overrides if "=" in override)
    games = [chosen["game.name"]] if "game.name" in chosen else GAMES
    algorithms = [chosen["algorithm"]] if "algorithm" in chosen else ALGORITHMS
    counts: Sequence[int | None] = threads or [None]
    rows = []
    for count in counts:
        for game in games:
            for algorithm in algorithms:
                fixed = [f"algorithm={algorithm}"] + [f"threads={count}"] * bool(count)
                config = Config.from_toml(CONFIGS / f"{game}.toml", [*overrides, *fixed])
                rows += _rows([_curve(config.with_overrides([f"seed={seed}"])) for seed in SEEDS])
    return rows


def _curve(config: Config) -> list[dict[str, Any]]:
    """The metrics of the evaluated iterations of one run, with the time that it had taken."""
    curve: list[dict[str, Any]] = []
    seconds = 0.0

    def look(metrics: dict[str, Any]) -> None:
        nonlocal seconds
        seconds += metrics["iteration_seconds"]
        if "exploitability" in metrics:
            curve.append({**metrics, "seconds": seconds, "cpu_seconds": process_time() - started})

    trainer = Trainer(config, on_iteration=look)
    started = process_time()
    trainer.run()
    last = curve[-1]
    say(
        f"{config.game.name}, {config.algorithm}, seed {config.seed}: {last['exploitability']:.4f} after "
        f"{last['iteration']} iterations and {seconds:.0f} seconds"
    )
    with trainer.learners["advantage0"].model.reading() as module:
        parameters = sum(parameter.numel() for parameter in module.parameters())
    about = {"game": config.game.name, "algorithm": config.algorithm, "parameters": parameters}
    return [{**point, **about} for point in curve]


def _rows(curves: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    rows = []
    for points in zip(*curves, strict=True):
        first, values = points[0], [point["exploitability"] for point in points]
        rows.append(
            {
                **{key: first[key] for key in _SAME},
                "seconds": median(point["seconds"] for point in points),
                "cpu_seconds": median(point["cpu_seconds"] for point in points),
                "samples": median(point["advantage0_samples"] + point["advantage1_samples"] for point in points),
                "infosets_sampled": median(point["infosets_sampled"] for point in points),
                "exploitability": median(values),
                "worst": max(values),
                **summary("exploitability", values),
            }
        )
    return rows
