"""The pictures of a report. Each is made from runs, or None where they have nothing to show in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

if TYPE_CHECKING:
    from engine.report import Run

# Okabe and Ito's colours, told apart with every kind of colour vision; more runs differ by dashes too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", ":", "-.")
GREY = "#888888"

# More would not be told apart, and may be a stranger's.
MOST_CURVES = 24
MOST_PHASES = 12
MOST_BUCKETS = 64
LONGEST_LABEL = 60

# What a payoff of 1 is.
UNITS = {"kuhn": "antes", "leduc": "antes", "lost_cities": "points"}


def _figure(height: float = 4.0) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(True, color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _styles(runs: list[Run]) -> Iterator[tuple[Run, dict[str, Any]]]:
    for number, run in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        style = {"color": colour, "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}
        style["label"] = _label(run.name)
        yield run, style


def _label(text: str) -> str:
    """Text that is drawn as it is: between dollar signs matplotlib would read formulas."""
    shown = text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 3]}..."
    return "".join(letter if letter.isprintable() else "?" for letter in shown).replace("$", r"\$")


def _legend(axes: Any, entries: int, least: int = 2) -> None:
    """Where there are at least so many curves; a picture of many grows until their names have room."""
    if entries >= least:
        axes.legend(frameon=False)
        axes.figure.set_figheight(max(axes.figure.get_figheight(), 1 + 0.25 * entries))


def _unit(runs: list[Run]) -> str:
    units = {UNITS.get(run.config.game.name, "payoff") for run in runs}
    return f"{units.pop()} a game" if len(units) == 1 else "each game's units"


def exploitability(runs: list[Run]) -> Figure | None:
    """Exploitability over iterations, both axes logarithmic: CFR's bound falls as a straight line there."""
    figure, axes = _figure()
    drawn = 0
    for run, style in _styles(runs):
        iterations, values = run.series("exploitability")
        points = [(x, y) for x, y in zip(iterations, values, strict=True) if y > 0]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, **style)
            drawn += 1
    if not drawn:
        return None
    axes.set(xscale="log", yscale="log", xlabel="iteration", ylabel=f"exploitability ({_unit(runs)})")
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        # Over few decades the powers of ten alone would be one or two labels; over many, more would touch.
        leads = "23457" if high < 10 * low else "25" if high < 40 * low else ""
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda value, _, leads=leads: _leading(value, leads)))
    axes.set_title(f"The average strategy, exactly ({', '.join(sorted({run.config.game.name for run in runs}))})")
    _legend(axes, drawn)
    return figure


def _leading(value: float, leads: str) -> str:
    """A minor tick's label, where its first digit is one of `leads`."""
    return f"{value:g}" if f"{value:e}"[0] in leads else ""


def matches(runs: list[Run]) -> Figure | None:
    """Win rate against each opponent over iterations, with 95 % intervals."""
    figure, axes = _figure()
    drawn = 0
    for run in runs:
        lines = [line for line in run.metrics if line.get("matches")]
        opponents = dict.fromkeys(match["opponent"] for line in lines for match in line["matches"])
        for opponent in list(opponents)[: max(0, MOST_CURVES - drawn)]:
            found = [
                (line["iteration"], match)
                for line in lines
                for match in line["matches"]
                if match["opponent"] == opponent
            ]
            xs = [iteration for iteration, _ in found]
            colour = COLOURS[drawn % len(COLOURS)]
            label = _label(opponent if len(runs) == 1 else f"{run.name}: {opponent}")
            axes.plot(xs, [100 * match["win_rate"] for _, match in found], color=colour, label=label, marker="o", ms=3)
            low, high = zip(*(match["win_rate_ci95"] for _, match in found), strict=True)
            axes.fill_between(xs, [100 * x for x in low], [100 * x for x in high], color=colour, alpha=0.15, lw=0)
            drawn += 1
    if not drawn:
        return None
    axes.axhline(50, color=GREY, linewidth=0.8)
    axes.set(xlabel="iteration", ylabel="games won, draws as half (%)", ylim=(0, 100))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("Matches against scripted opponents")
    _legend(axes, drawn, least=1)
    return figure


def losses(runs: list[Run]) -> Figure | None:
    """Advantage and policy losses over iterations, each where any run trained for it."""
    keys = [key for key in ("advantage_loss", "policy_loss") if any(run.series(key)[1] for run in runs)]
    if not keys:
        return None
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    for place, key in enumerate(keys, 1):
        axes = figure.add_subplot(1, len(keys), place)
        axes.grid(True, color="#e5e5e5", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        drawn = 0
        for run, style in _styles(runs):
            iterations, values = run.series(key)
            if values:
                axes.plot(iterations, values, **style)
                drawn += 1
        axes.set(xlabel="iteration", title=key.replace("_", " ").capitalize(), ylabel="loss")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axes, drawn)
    return figure


def speed(runs: list[Run]) -> Figure | None:
    """Nodes a second over iterations."""
    figure, axes = _figure(3.2)
    drawn = 0
    for run, style in _styles(runs):
        iterations, values = run.series("nodes_per_second")
        if values:
            axes.plot(iterations, values, **style)
            drawn += 1
    if not drawn:
        return None
    axes.set(xlabel="iteration", ylabel="nodes a second, while collecting", ylim=(0, None), title="Traversal speed")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _legend(axes, drawn)
    return figure


def phases(runs: list[Run]) -> Figure | None:
    """Mean seconds of an iteration by phase, one bar a run."""
    means = [_phase_means(run) for run in runs]
    names = list(dict.fromkeys(name for mean in means for name in mean))[:MOST_PHASES]
    if not names:
        return None
    figure, axes = _figure(1.6 + 0.6 * len(runs))
    left = [0.0] * len(runs)
    for number, name in enumerate(names):
        widths = [mean.get(name, 0.0) for mean in means]
        colour = GREY if name == "other" else COLOURS[number % len(COLOURS)]
        axes.barh(range(len(runs)), widths, left=left, color=colour, label=_label(name), height=0.6, edgecolor="white")
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(runs)), [_label(run.name) for run in runs])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set(xlabel="mean seconds of an iteration", title="Where the time goes")
    figure.legend(frameon=False, ncols=len(names), loc="outside lower center", columnspacing=1.2, handlelength=1.5)
    return figure


def _phase_means(run: Run) -> dict[str, float]:
    """Phase -> mean seconds; what is left of iteration_seconds, and slivers nobody could see, is `other`."""
    keys = dict.fromkeys(
        key
        for line in run.metrics
        for key in line
        if key.endswith("_seconds") and not key.endswith("_thread_seconds") and key != "iteration_seconds"
    )
    means = {
        key.removesuffix("_seconds"): sum(run.series(key)[1]) / len(run.metrics) for key in list(keys)[:MOST_PHASES]
    }
    total = sum(run.series("iteration_seconds")[1]) / len(run.metrics)
    means = {name: mean for name, mean in means.items() if mean > 0.003 * total}
    if (rest := total - sum(means.values())) > 0.001 * total:
        means["other"] = rest
    return means


def batch_sizes(runs: list[Run]) -> Figure | None:
    """Which share of the batches had how many rows, over the whole run."""
    figure, axes = _figure()
    drawn = 0
    width = 0.8 / len(runs)
    last = 0
    for number, (run, style) in enumerate(_styles(runs)):
        lines: list[list[float]]
        lines = [sizes for line in run.metrics if _are_sizes(sizes := line.get("iteration_batch_sizes") or [])]
        lines = [sizes for sizes in lines if len(sizes) == len(lines[-1])]
        if not lines or not sum(map(sum, lines)):
            continue
        totals = [sum(bucket) for bucket in zip(*lines, strict=True)]
        shares = [100 * total / sum(totals) for total in totals]
        places = [bucket + (number - (len(runs) - 1) / 2) * width for bucket in range(len(shares))]
        axes.bar(places, shares, width=width * 0.95, color=style["color"], label=run.name)
        last = max(last, max(bucket for bucket, total in enumerate(totals) if total))
        drawn += 1
    if not drawn:
        return None
    labels = [f"{1 << b}" if b == 0 else f"{1 << b}–{(2 << b) - 1}" for b in range(last + 1)]
    axes.set_xticks(range(last + 1), labels, rotation=30 if last > 6 else 0)
    axes.set(xlabel="rows in a batch", ylabel="share of batches (%)", xlim=(-0.6, last + 0.6))
    axes.set_title("Batches that traversals had evaluated")
    axes.grid(False, axis="x")
    _legend(axes, drawn)
    return figure


def _are_sizes(sizes: Any) -> bool:
    """Whether these can be counts of batches, by size."""
    return isinstance(sizes, list) and 0 < len(sizes) <= MOST_BUCKETS and min(sizes) >= 0
