"""What runs learned, drawn: learning curves, batch sizes, time per phase, and a page that shows them."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import pictures
from engine.config import Config
from engine.display import duration
from engine.errors import ConfigError, RunError
from engine.metrics import is_number, read_metrics


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it."""

    name: str
    config: Config
    metrics: list[dict[str, Any]]

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Iterations and values of the lines that have a number under `key`."""
        points = [(line["iteration"], line[key]) for line in self.metrics if is_number(line.get(key))]
        return [x for x, _ in points], [y for _, y in points]


def read_run(path: Path | str) -> Run:
    """A run from its folder, or from one of its checkpoints. RunError where it has nothing to draw."""
    folder = Path(path)
    if folder.parent.name == "checkpoints":
        folder = folder.parent.parent
    if not (folder / "config.toml").is_file():
        raise RunError(f"{path} is not a run's folder: it has no config.toml; give one that `freecfr train` made.")
    metrics = [line for line in read_metrics(folder / "metrics.jsonl") if "iteration" in line]
    if not metrics:
        raise RunError(f"{folder} has no finished iteration in metrics.jsonl, so there is nothing to draw yet.")
    try:
        # A folder's name may have bytes that are no text.
        name = os.fsencode(folder.resolve().name).decode(errors="replace")
        return Run(name, Config.from_toml(folder / "config.toml"), metrics)
    except ConfigError as error:
        raise RunError(f"{folder / 'config.toml'}: {error}") from None


def write_report(paths: Sequence[Path | str], out: Path | str) -> Path:
    """Draw runs together into the folder `out`; the summary page's path.

    Raises RunError where a run cannot be read or the folder cannot be written.
    """
    runs = [read_run(path) for path in paths]
    out = Path(out)
    if out.is_symlink() and any(out.parent.samefile(path) for path in paths):
        raise RunError(f"{out} is a symbolic link, and might lead anywhere; remove it, or give a folder with --out.")
    page = out / "index.html"
    drawn: list[tuple[str, str]] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, title, draw in _PICTURES:
            if (figure := draw(runs)) is not None:
                picture = io.BytesIO()
                figure.savefig(picture, dpi=150)
                _put(out / f"{name}.png", picture.getvalue())
                drawn.append((f"{name}.png", title))
        _put(page, _page(runs, drawn).encode())
    except OSError as error:
        raise RunError(f"{out} cannot be written ({error.strerror}); give another folder with --out.") from None
    return page


def _put(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. What stands there is replaced: where it is a link, nothing is written to."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.unlink(missing_ok=True)
    with open(beside, "xb") as file:
        file.write(data)
    os.replace(beside, path)


_PICTURES: tuple[tuple[str, str, Callable[[list[Run]], Any]], ...] = (
    ("exploitability", "Exploitability", pictures.exploitability),
    ("matches", "Matches against scripted opponents", pictures.matches),
    ("losses", "Training losses", pictures.losses),
    ("speed", "Traversal speed", pictures.speed),
    ("phases", "Time per phase", pictures.phases),
    ("batch_sizes", "Batch sizes", pictures.batch_sizes),
)


def _page(runs: list[Run], drawn: list[tuple[str, str]]) -> str:
    """The summary page. Whatever comes from a run is escaped."""
    rows = [[html.escape(str(cell)) for cell in row] for row in _summary(runs)]
    head = "".join(f"<th>{cell}</th>" for cell in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows[1:])
    figures = "".join(f'<h2>{title}</h2>\n<img src="{name}" alt="{title}">\n' for name, title in drawn)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>freecfr report</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse }}
th, td {{ padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: left }}
img {{ max-width: 100% }}
</style>
<h1>{html.escape(", ".join(run.name for run in runs))}</h1>
<table>
<tr>{head}</tr>
{body}</table>
{figures}</html>
"""


def _summary(runs: list[Run]) -> list[list[str]]:
    """One column a run: what it was, what it did, where it got to."""
    labels: dict[str, Callable[[Run], str]] = {
        "game": lambda run: run.config.game.name,
        "algorithm": lambda run: f"{run.config.algorithm}, {run.config.average}",
        "network": lambda run: f"{run.config.network.layers} layers of {run.config.network.hidden}",
        "parameters of a network": lambda run: _whole(_parameters(run.config)),
        "seed": lambda run: str(run.config.seed),
        "iterations": lambda run: f"{run.metrics[-1]['iteration']} of {run.config.iterations}",
        "traversals": lambda run: _whole(run.metrics[-1].get("traversals")),
        "nodes": lambda run: _whole(run.metrics[-1].get("nodes")),
        "samples stored": lambda run: _whole(_samples(run.metrics[-1])),
        "information sets sampled": _coverage,
        "time": lambda run: duration(sum(run.series("iteration_seconds")[1])),
        "threads": lambda run: _whole(run.metrics[-1].get("threads")),
        "exploitability, first and last": lambda run: _ends(run.series("exploitability")),
    }
    return [["", *(run.name for run in runs)], *([label, *map(tell, runs)] for label, tell in labels.items())]


def _parameters(config: Config) -> int:
    """Of the network that the config describes; a run from Python may have had another."""
    game, network = config.load_game(), config.network
    widths = [game.n_features] + [network.hidden] * network.layers + [game.n_actions]
    return sum((wide + 1) * narrow for wide, narrow in zip(widths, widths[1:], strict=False))


def _samples(line: dict[str, Any]) -> int | None:
    """In the memories of both advantage networks."""
    counts = [line.get(f"advantage{player}_samples") for player in (0, 1)]
    return sum(count for count in counts if count) if all(map(is_number, counts)) else None


def _coverage(run: Run) -> str:
    """Which the samples are of, and how many there are; known of games small enough to enumerate."""
    _, seen = run.series("infosets_sampled")
    _, all_of_them = run.series("infosets")
    return f"{seen[-1]:,} of {all_of_them[-1]:,}" if seen and all_of_them else "not counted"


def _whole(value: Any) -> str:
    return f"{value:,.0f}" if is_number(value) else "unknown"


def _ends(series: tuple[list[int], list[float]]) -> str:
    iterations, values = series
    if not values:
        return "not evaluated"
    return f"{values[0]:.4f} (iteration {iterations[0]}) to {values[-1]:.4f} (iteration {iterations[-1]})"
