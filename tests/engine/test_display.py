"""Progress: plain lines where no terminal is, a bar where one is, figures that are there."""

import io

import pytest

from engine.config import Config
from engine.display import Display, describe, duration

CONFIG = Config(game={"name": "kuhn"}, iterations=3)
METRICS = {"iteration": 1, "nodes_per_second": 12345.6, "advantage_loss": 0.25, "policy_loss": None,
           "iteration_seconds": 40.0}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_lines():
    stream = io.StringIO()
    with Display(CONFIG, stream) as display:
        display.show(METRICS)
        display.show({**METRICS, "iteration": 2})  # too soon for another line
        display.notice("a notice [not markup]")
        display.show({**METRICS, "iteration": 3, "exploitability": 0.125})
    assert stream.getvalue().splitlines() == [
        "iteration 1/3: 12,346 nodes/s, advantage loss 0.25, 1m 20s left",
        "a notice [not markup]",
        "iteration 3/3: 12,346 nodes/s, advantage loss 0.25, exploitability 0.1250, 0s left",
    ]


def test_an_evaluation_is_always_a_line():
    stream = io.StringIO()
    with Display(CONFIG, stream) as display:
        display.show(METRICS)
        display.show(
            {**METRICS, "iteration": 2, "matches": [{"opponent": "opener", "win_rate": 0.5, "score_mean": -3}]}
        )
    assert "iteration 2/3" in stream.getvalue() and "opener 50% -3.0" in stream.getvalue()


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Display(CONFIG, stream) as display:
        display.show(METRICS)
        display.notice("a notice")
    assert "a notice" in stream.getvalue() and "1/3" in stream.getvalue()


def test_describe_says_what_is_there():
    assert describe({"iteration": 1}) == []
    assert describe({"advantage_loss": [0.5, 0.25]}) == ["advantage loss 0.5", "advantage loss 0.25"]


@pytest.mark.parametrize("seconds, text", [(0.4, "0s"), (59.6, "1m 00s"), (185, "3m 05s"), (7620, "2h 07m")])
def test_duration(seconds, text):
    assert duration(seconds) == text
