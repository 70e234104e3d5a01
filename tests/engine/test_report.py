"""Reports: every picture that has figures is drawn, and shows something; strangers' text stays text."""

import json
import math

import matplotlib.image
import numpy as np
import pytest

from engine.config import Config
from engine.errors import RunError
from engine.report import read_run, write_report


def make_run(folder, lines=30, name="kuhn", **extra):
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(Config(game={"name": name}, threads=2).to_toml())
    with open(folder / "metrics.jsonl", "w") as file:
        for iteration in range(1, lines + 1):
            line = {"iteration": iteration, "nodes": 100 * iteration, "traversals": 10 * iteration, "threads": 2,
                    "nodes_per_second": 1e4 + iteration, "advantage_loss": 1 / iteration, "policy_loss": None,
                    "collect_seconds": 1.0, "train_seconds": 3.0, "publish_seconds": 1e-4, "iteration_seconds": 4.5,
                    "iteration_batch_sizes": [1, 2, 30, 4, 0, 0]}  # fmt: skip
            if iteration % 5 == 0:
                line |= {key: value(iteration) for key, value in extra.items()}
            file.write(json.dumps(line) + "\n")
    return folder


def has_something(path):
    """A picture of which a fair share is neither background nor alike."""
    pixels = matplotlib.image.imread(path)[..., :3]
    return pixels.shape[0] > 200 and pixels.shape[1] > 600 and float(np.mean(pixels.min(axis=2) < 0.9)) > 0.005


def test_a_solved_game(tmp_path):
    runs = [make_run(tmp_path / name, exploitability=lambda i: 1 / i) for name in ("one", "two")]
    page = write_report(runs, tmp_path / "report")
    pictures = sorted(path.name for path in page.parent.glob("*.png"))
    assert pictures == ["batch_sizes.png", "exploitability.png", "losses.png", "phases.png", "speed.png"]
    text = page.read_text()
    for picture in pictures:
        assert has_something(page.parent / picture) and f'src="{picture}"' in text
    assert "0.2000 (iteration 5) to 0.0333 (iteration 30)" in text and "2m 15s" in text


def test_matches(tmp_path):
    def matches(iteration):
        rate = iteration / 40
        interval = [rate - 0.02, rate + 0.02]
        return [{"opponent": name, "win_rate": rate, "win_rate_ci95": interval, "score_mean": 1.0} for name in "ab"]

    page = write_report([make_run(tmp_path / "run", name="lost_cities", matches=matches)], tmp_path / "report")
    assert has_something(page.parent / "matches.png") and not (page.parent / "exploitability.png").exists()
    assert "not evaluated" in page.read_text()


@pytest.mark.parametrize("value", [None, 0.0, "many", math.inf])
def test_figures_that_cannot_be_drawn_are_left_out(tmp_path, value):
    run = make_run(tmp_path / "run", lines=5, exploitability=lambda iteration: value)
    if value == math.inf:
        run.joinpath("metrics.jsonl").write_text('{"iteration": 1, "exploitability": null, "iteration_seconds": 1}\n')
    page = write_report([run], tmp_path / "report")
    assert not (page.parent / "exploitability.png").exists()


def test_a_run_of_one_iteration(tmp_path):
    page = write_report([make_run(tmp_path / "run", lines=1)], tmp_path / "report")
    assert has_something(page.parent / "phases.png")


def test_names_are_escaped(tmp_path):
    page = write_report([make_run(tmp_path / "<script>x")], tmp_path / "report")
    assert "<script>" not in page.read_text() and "&lt;script&gt;x" in page.read_text()


def test_a_checkpoint_stands_for_its_run(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "checkpoints" / "iteration-000003").mkdir(parents=True)
    assert read_run(run / "checkpoints" / "iteration-000003").name == "run"


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(RunError, match="has no config.toml"):
        write_report([tmp_path], tmp_path / "report")
    run = make_run(tmp_path / "run", lines=0)
    with pytest.raises(RunError, match="no finished iteration"):
        write_report([run], tmp_path / "report")
    assert not (tmp_path / "report").exists()
    other = make_run(tmp_path / "other")
    with pytest.raises(RunError, match="cannot be written"):
        write_report([other], other / "config.toml")
    (other / "config.toml").write_text("nonsense = 1")
    with pytest.raises(RunError, match="no setting 'nonsense'"):
        read_run(other)


def test_links_lead_nowhere(tmp_path):
    """A folder for the report that is a link is refused; a link to a picture is replaced, not followed."""
    run, elsewhere = make_run(tmp_path / "run"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run / "report").symlink_to(elsewhere)
    with pytest.raises(RunError, match="symbolic link"):
        write_report([run], run / "report")
    assert not list(elsewhere.iterdir())
    (run / "report").unlink()
    (run / "report").mkdir()
    kept = tmp_path / "kept"
    kept.write_text("kept")
    for name in ("index.html", ".index.html.tmp", "phases.png", ".phases.png.tmp"):
        (run / "report" / name).symlink_to(kept)
    page = write_report([run], run / "report")
    assert kept.read_text() == "kept" and has_something(page.parent / "phases.png")
    assert not any(path.is_symlink() for path in page.parent.iterdir())


def test_names_that_look_like_formulas_or_are_no_text(tmp_path):
    def matches(iteration):
        names = [r"$\frac{$", "o" * 5000, *(f"o{number}" for number in range(60))]
        return [{"opponent": name, "win_rate": 0.5, "win_rate_ci95": [0.4, 0.6], "score_mean": 0.0} for name in names]

    run = make_run(tmp_path / "$x^$\udcff", matches=matches)
    page = write_report([run], tmp_path / "report")
    assert has_something(page.parent / "matches.png") and "$x^$\ufffd" in page.read_text()


def test_phases_and_batch_sizes_of_another_making(tmp_path):
    run = make_run(tmp_path / "run")
    line = {"iteration": 1, "iteration_seconds": 0, "iteration_batch_sizes": [1, 2], "exploitability": 1e-300}
    line |= {f"${number}_seconds": 1.0 for number in range(500)}
    lines = [line, line | {"iteration": 2, "iteration_batch_sizes": [-1] * 10_000}, line | {"exploitability": 1e99}]
    run.joinpath("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_report([run], tmp_path / "report")
    for name in ("phases", "batch_sizes", "exploitability"):
        assert has_something(page.parent / f"{name}.png")
