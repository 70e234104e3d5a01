"""Benches: the keys that scripts read, what is measured by default, and what is refused. No figure is judged."""

import math
import os
import subprocess

import pytest

from engine import (
    bench,
    bench_baseline,
    bench_forward,
    bench_iteration,
    bench_learning,
    bench_matches,
    bench_networks,
    bench_schedulers,
    bench_streams,
    bench_traversal,
    cli,
    handover,
)
from engine.bench_memory import fill, resident_mib
from engine.config import Config
from engine.errors import BadInput
from engine.hardware import cpu_has_bf16
from engine.memory import Memory
from engine.trainer import Trainer
from engine.turns import take_turns
from pyx.encoding import RecordLayout
from pyx.registry import load_game
from threading_runtime.gil import threads_default

TINY = [
    "game.name=lost_cities", "game.colours=2", "game.ranks=3", "game.wagers=1", "game.hand_size=2",
    "network.hidden=16", "network.layers=2", "traversal.count=8", "traversal.block=4", "traversal.lanes=4",
    "training.updates=2", "training.batch_size=16", "memory.capacity=3000",
]  # fmt: skip
DTYPES = ["float32", "bfloat16"] if cpu_has_bf16() else ["float32"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(bench_forward, "SECONDS", 0.001)
    monkeypatch.setattr(bench_forward, "REPEATS", 2)
    monkeypatch.setattr(bench_forward, "PEAK_SIZES", {"cpu": 64})
    monkeypatch.setattr(bench_traversal, "ROOFLINE_SECONDS", 0.001)
    monkeypatch.setattr(bench_traversal, "ENOUGH_SECONDS", 0.0)


def measured(name, threads=(1, 2), overrides=()):
    result = bench.run(name, threads, [*TINY, *overrides])
    assert result["name"] == name
    assert {"processor", "cores", "gil_enabled", "python", "torch", "numpy"} <= result["machine"].keys()
    for row in result["rows"]:
        assert all(isinstance(value, int | float | str | bool) for value in row.values())
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
        assert row["repeats"] >= 1 and row["spread"] >= 0.0
        assert row["median"] == row[row["figure"]]
    return result["rows"]


def test_traversal():
    rows = measured("traversal")
    assert [(row["inference_dtype"], row["shortcuts"], row["threads"]) for row in rows] == [
        (dtype, shortcuts, threads) for dtype in DTYPES for shortcuts in (False, True) for threads in (1, 2)
    ]
    for row in rows:
        assert row["repeats"] == bench_traversal.LEAST_REPEATS
        assert row["nodes_per_second"] == row["rows_per_second"] > 0
        assert row["forced_nodes_per_second"] > 0
        assert row["forward_share"] > 0 and row["forward_share_same_batch"] > 0
        assert row["forward_cpu_share"] > 0
        assert row["core_microseconds_per_state"] == pytest.approx(1e6 * row["threads"] / row["rows_per_second"])
        assert row["forward_best_batch"] in bench_traversal.ROOFLINE_BATCHES
        assert (row["traversals"], row["lanes"]) == (16, 4)
        if row["threads"] == 2:
            assert row["speed_up_over_threads"] == 1
            assert row["speed_up_share"] == pytest.approx(row["speed_up"] / row["forward_speed_up"])
        else:
            assert "speed_up" not in row


def test_traversal_of_one_dtype():
    rows = measured("traversal", [2], ["inference_dtype=float32"])
    assert [(row["inference_dtype"], row["threads"]) for row in rows] == [("float32", 2)] * 2


def test_ratios_are_taken_within_a_turn():
    assert bench_traversal.paired([1.0, 10.0, 3.0], [2.0, 10.0, 4.0]) == 0.75


def test_network_that_is_played_is_neither_uniform_nor_endless():
    """The full game: close to the 88 decisions of games without draws from piles, far from random play's 286."""
    config = Config(inference_dtype="float32", traversal={"count": 8}).resolved()
    game = config.load_game()
    networks = [
        bench_traversal.PublishedNetwork(
            bench_networks.played_network(game, config, player), game.n_features, bench_forward.DTYPES["float32"]
        )
        for player in (0, 1)
    ]
    with bench_traversal.Pool(1) as pool:
        collector = bench_traversal.ThreadCollector(game, config, networks)
        counts = bench_traversal.collect(pool, collector, config, 1).stats.as_dict()
    assert 88 <= (counts["nodes"] + counts["forced_nodes"]) / counts["traversals"] < 160
    assert counts["fallbacks"] < counts["nodes"] / 10


def test_forward():
    rows = measured("forward")
    assert [(row["threads"], row["inference_dtype"], row["batch"]) for row in rows] == [
        (threads, dtype, batch) for threads in (1, 2) for dtype in DTYPES for batch in bench_forward.BATCHES
    ]
    for row in rows:
        assert row["microseconds_per_call"] == pytest.approx(row["core_microseconds_per_state"] * row["batch"])
        assert row["gflop_per_second"] > 0 and row["cpu_microseconds_per_state"] > 0
        assert row["peak_share"] == pytest.approx(row["gflop_per_second"] / row["peak_gflop_per_second"])
        assert row["enough_batch"] in bench_forward.BATCHES
        assert row["supply_per_iteration"] == pytest.approx(16 * row["supply_per_traversal"])
    assert {row["batch"] for row in rows if "published_gpu_microseconds_per_state" in row} == {1, 4, 64, 256}


def test_end_to_end():
    rows = measured("end-to-end", [2], ["iterations=2"])
    rows, parts = [row for row in rows if "part" not in row], [row for row in rows if "part" in row]
    assert [(row["inference_dtype"], row["autocast"]) for row in rows] == [(d, d == "bfloat16") for d in DTYPES]
    for row in rows:
        phases = sum(row[f"{phase}_seconds"] for phase in ("collect", "remember", "train", "publish", "boundary"))
        assert 0 < phases <= row["iteration_seconds"]
        assert (row["threads"], row["traversals"], row["networks"], row["updates"]) == (2, 16, 3, 2)
        assert row["scaled_to_updates"] == 512
        assert row["scaled_train_seconds"] == pytest.approx(256 * row["train_seconds"])
        assert row["scaled_iteration_seconds"] > row["scaled_train_seconds"]
        assert row["training_share"] > 0 and row["training_cpu_share"] > 0 and row["training_roofline_seconds"] > 0
        mine = {part["part"]: part for part in parts if part["inference_dtype"] == row["inference_dtype"]}
        expected = {"game logic", "encoding", "forward", "regret matching", "sample writing", "merging", "memory",
                    "training advantage0", "training advantage1", "training strategy", "publishing", "boundary",
                    "evaluation"}  # fmt: skip
        assert expected < mine.keys()
        for name in expected:
            assert 0 < mine[name]["seconds"] <= mine[name]["thread_seconds"] and 0 < mine[name]["share"]
        assert mine["evaluation"]["seconds"] == row["evaluate_seconds"] > 0


def test_parts_of_an_iteration_are_the_iteration():
    trainer = Trainer(Config().with_overrides([*TINY, "iterations=1", "threads=2"]))
    metrics = trainer.run()
    whole = metrics["iteration_seconds"] - metrics["evaluate_seconds"]
    parts = bench_iteration._parts_of(metrics, whole, 2)
    assert sum(seconds for seconds, _ in parts.values()) == pytest.approx(whole)
    assert all(seconds > -1e-3 for seconds, _ in parts.values())


@pytest.mark.one_build
def test_baseline(monkeypatch):
    monkeypatch.setattr(bench_baseline, "REPEATS", 1)
    rows = measured("baseline", [1], ["iterations=3"])
    assert [(row["count"], row["workers"]) for row in rows] == [(1, kind) for kind in bench_baseline.KINDS]
    assert len({(row["memories_mib"], row["nodes"]) for row in rows}) == 1, "every setting does the same work"
    for row in rows:
        assert row["collect_seconds"] >= row["traverse_seconds"] > 0
        assert row["collect_seconds"] + row["train_seconds"] <= row["iteration_seconds"]
        assert row["startup_seconds"] > 0 and row["transfer_seconds"] > 0 and row["pss_mib"] > row["overhead_mib"]
        assert row["end_to_end_ceiling"] > 1 and row["repeats"] == 2
        for name in ("iteration_over_threads", "collect_over_threads"):
            assert row[f"{name}_p25"] <= row[name] <= row[f"{name}_p75"]
    assert {rows[0][f"{name}_over_threads"] for name in ("iteration", "collect", "startup", "overhead")} == {1}
    weights, by_pickle, shared = (row["transfer_bytes"] for row in rows)
    assert 0 < weights < shared < by_pickle
    # A process of its own has imported torch once more; a thread has not.
    assert all(row["overhead_mib"] > rows[0]["overhead_mib"] + 50 for row in rows[1:])
    assert all(row["startup_seconds"] > rows[0]["startup_seconds"] for row in rows[1:])


def test_baseline_counts_every_turn_but_the_first():
    with pytest.raises(BadInput, match="iterations is 1, but bench baseline does not count the first; give 2 or more"):
        bench.run("baseline", [1], [*TINY, "iterations=1"])


def test_ratios_are_of_the_same_turn():
    mine, others = [[{"seconds": value} for value in values] for values in ([2.0, 30.0, 4.0], [1.0, 10.0, 4.0])]
    assert bench_baseline._paired("ratio", "seconds", mine, others) == {
        "ratio": 2, "ratio_p25": 1.5, "ratio_p75": 2.5}  # fmt: skip
    assert bench_baseline._paired("ratio", "seconds", mine[:1], others[:1])["ratio_p75"] == 2
    orders = [bench_baseline._rotated("abc", turn) for turn in range(4)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


def test_a_process_that_has_ended_holds_no_memory():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and still among the children
    assert bench_baseline.pss_mib() > 0
    child.wait()


def test_a_measured_run_that_fails_is_told(monkeypatch, capfd):
    monkeypatch.setattr(bench_baseline, "KINDS", ("threads",))
    with pytest.raises(RuntimeError, match="ended early"):
        bench.run("baseline", [1], [*TINY, "device=cuda:99"])
    assert "cuda:99" in capfd.readouterr().err


def test_schedulers(monkeypatch):
    monkeypatch.setattr(bench_schedulers, "REPEATS", 2)
    monkeypatch.setattr(bench_schedulers, "ROOFLINE_BATCHES", (16, 32))
    monkeypatch.setattr(bench_schedulers, "ROOFLINE_SECONDS", 0.001)
    monkeypatch.setattr(handover, "REQUESTS", 20)
    *rows, threads, processes = measured("schedulers", [1, 2], ["traversal.lanes=8", "inference_dtype=float32"])
    assert [(row["threads"], row["scheduler"]) for row in rows] == [
        (count, name) for count in (1, 2) for name in bench_schedulers.SCHEDULERS
    ]
    for row in rows:
        assert (row["network"], row["lanes"]) == ("16x2", 8)
        assert 0 < row["batch_p10"] <= row["batch_p90"] and row["batch_mean"] > 0
        assert 0 < row["waiting_share"] < 1 and row["nodes_per_second"] > 0
        assert row["forward_share"] > 0 and row["forward_share_same_batch"] > 0
    block, server, together = rows[3:]
    assert min(server["batch_mean"], together["batch_mean"]) > block["batch_mean"]
    assert (threads["handover"], processes["handover"]) == ("threads", "processes")
    for row in (threads, processes):
        assert (row["clients"], row["rows_a_request"]) == (2, 7) and row["microseconds_per_request"] > 0


def test_matches(monkeypatch):
    monkeypatch.setattr(bench_matches, "REPEATS", 1)
    monkeypatch.setattr(bench_matches, "BOT_GAMES", 4)
    monkeypatch.setattr(bench_matches, "AGENT_GAMES", 2)
    rows = measured("matches", [2], ['evaluation.opponents=["opener","random","threshold"]'])
    assert [(row["first"], row["second"], row["games"]) for row in rows] == [
        *(("agent", name, 2) for name in ("opener", "random", "threshold")),
        *(("opener", "random", 4), ("opener", "threshold", 4), ("random", "threshold", 4)),
    ]
    assert all(row["plies_per_second"] > row["games_per_second"] > 0 for row in rows)


def test_memory():
    (row,) = measured("memory", [1])
    assert (row["memories"], row["samples"]) == (3, 9000)
    assert row["memories_mib"] == pytest.approx(9000 * row["record_bytes"] / 2**20)
    assert row["resident_mib"] > 0 and row["resident_mib_before"] > 0


def test_filling_a_memory_writes_its_pages():
    layout = RecordLayout(load_game("lost_cities"))
    memory = Memory(layout, 500_000, seed=0, number=0)
    fill(memory)
    assert memory.size == 0, "there was nothing to fill it with"
    memory.add(memory.rows[:300].copy())
    before = resident_mib()
    fill(memory)
    assert memory.size == memory.capacity
    assert resident_mib() - before > 0.9 * 500_000 * layout.record_bytes / 2**20


def test_thread_counts():
    assert bench.thread_counts([2, 1, 2], 8) == [1, 2]
    assert bench.thread_counts([], 3) == [3]
    assert bench.thread_counts([], None) == sorted({1, threads_default()})


@pytest.mark.parametrize(
    "name, says",
    [
        ("fowrard", "there is no bench 'fowrard'; did you mean 'forward'?"),
        ("gates", "bench 'gates' is not built yet; there are: traversal"),
    ],
)
def test_refused(name, says, capsys):
    with pytest.raises(BadInput, match=says.replace("?", r"\?")):
        bench.run(name, [], [])
    assert cli.main(["bench", name]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1


def test_settings_that_cannot_be_used(capsys):
    assert cli.main(["bench", "forward", "--set", "network.hiden=3"]) == 2
    assert "did you mean 'network.hidden'" in capsys.readouterr().err


def test_learning():
    settings = "game.name=kuhn network.hidden=16 network.layers=2 iterations=2 evaluation.every=1 training.updates=2"
    rows = bench.run("learning", [1], settings.split())["rows"]
    assert [(row["algorithm"], row["iteration"]) for row in rows] == [
        (algorithm, iteration) for algorithm in bench_learning.ALGORITHMS for iteration in (1, 2)
    ]
    for row in rows:
        assert row["repeats"] == len(bench_learning.SEEDS) and row["median"] == row["exploitability"] <= row["worst"]
        assert 0 < row["infosets_sampled"] <= row["infosets"] == 12
        assert row["parameters"] == 11 * 16 + 16 + 16 * 16 + 16 + 16 * 2 + 2
        assert 0 < row["samples"] and 0.0 < row["seconds"]


def test_streams_need_a_cuda_device(monkeypatch, capsys):
    monkeypatch.setattr(bench_streams.hardware, "cuda_devices", lambda: 0)
    assert cli.main(["bench", "streams"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "CUDA" in line and "freecfr bench schedulers" in line


def test_rows_of_streams(monkeypatch):
    """All three ways answer, on the CPU too, where streams are none."""
    monkeypatch.setattr(bench_streams, "SECONDS", 0.01)
    monkeypatch.setattr(bench_streams, "REPEATS", 2)
    config = Config().with_overrides([*TINY, "device=cpu", "inference_dtype=float32"]).resolved()
    rows = bench_streams.rows(config, [1, 2], [16, 64])
    assert [(row["threads"], row["batch"], row["way"]) for row in rows] == [
        (threads, batch, way) for threads in (1, 2) for batch in (16, 64) for way in bench_streams.WAYS
    ]
    assert all(row["rows_per_second"] == row["median"] > 0 and row["repeats"] == 2 for row in rows)


def test_overlap_of_kernels():
    assert bench_streams.overlap_of([]) is None
    assert bench_streams.overlap_of([(0, 2), (3, 4)]) == 1
    assert bench_streams.overlap_of([(3, 5), (0, 4), (1, 2)]) == 7 / 5


def test_rows_of_overlap():
    rows = bench.run("overlap", [1, 2], [*TINY, "iterations=3"])["rows"]
    assert [(row["threads"], row["overlap"]) for row in rows] == [
        (threads, overlap) for threads in (1, 2) for overlap in ("none", "pipelined", "free")
    ]
    for row in rows:
        assert row["repeats"] == 2 and row["iteration_seconds"] > 0
        assert row["times_none_p25"] <= row["times_none"] <= row["times_none_p75"]
    assert rows[0]["times_none"] == 1


def test_rows_of_checkpoints():
    [row] = bench.run("checkpoints", [2], [*TINY, "iterations=9"])["rows"]
    assert row["repeats"] == 2 and row["threads"] == 2 and row["capacity"] == 3000
    layout = RecordLayout(Config().with_overrides(TINY).load_game())
    assert row["on_disk_mib"] > 3 * 3000 * layout.record_bytes / (1 << 20)  # three memories, full


def test_end_to_end_is_of_phases_one_after_the_other(capsys):
    assert cli.main(["bench", "end-to-end", "--set", "overlap=pipelined"]) == 2
    assert "freecfr bench overlap" in capsys.readouterr().err


def test_a_run_that_fails_ends_all_that_take_turns():
    def failing(look):
        def fail(metrics):
            raise LookupError("now")

        return Trainer(Config().with_overrides(TINY), on_iteration=fail)

    with pytest.raises(LookupError, match="now"):
        take_turns({"good": lambda look: Trainer(Config().with_overrides(TINY), on_iteration=look), "bad": failing})
