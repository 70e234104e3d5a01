"""A config, metrics or a checkpoint from a stranger: an error at most, never code that runs, a huge allocation, or a
write outside the run's folder.

Some dozens of mutated files for each reader in every run of the tests; the soak (`make soak`) goes on for SOAK_SECONDS.
Each reader works in a process of its own whose memory may grow by 1 GiB.
"""

import functools
import hashlib
import io
import json
import os
import shutil
import time
import types
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import checkpoint
from engine.agent import load_agent
from engine.checkpoint import CheckpointStore, list_checkpoints, read_checkpoint
from engine.config import Config
from engine.evaluation import evaluate_strategy
from engine.judge import solvable
from engine.matches import play_match
from engine.metrics import MetricsLog, read_metrics
from pyx.encoding import RecordLayout
from pyx.registry import load_game
from tests.commands import freecfr
from tests.engine.hostile import (
    DATES,
    ROOM,
    TEXTS,
    VALUES,
    Evil,
    as_toml,
    confined,
    contents,
    deep,
    ends_well,
    little_room,
    mutated_bytes,
    mutated_json,
)
from tests.engine.test_checkpoint import SIZES, Toy
from tests.run_folders import written
from threading_runtime.pool import Pool

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
pytestmark = pytest.mark.one_build

FEW = settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
MANY = settings(max_examples=10, deadline=None, database=None, suppress_health_check=[*HealthCheck])


def fuzzed(prepare, *arguments, seconds=0.0):
    """Run in a process of its own the property that prepare(*arguments) gives; with `seconds`, for as long."""
    return confined(_fuzz, prepare, arguments, seconds, seconds=seconds + 300.0)


def _fuzz(prepare, arguments, seconds):
    os.chdir(arguments[0])
    count, end = [0, 0], time.monotonic() + seconds
    strategies, examine = prepare(*arguments)

    def one(**drawn):
        count[examine(**drawn)] += 1

    limits = MANY if seconds else FEW
    while True:
        limits(given(**strategies)(one))()
        if time.monotonic() >= end:
            return {"refused": count[0], "taken": count[1]}


# --- settings -------------------------------------------------------------------------------------------------------

SECTIONS = [name for name, field in Config.model_fields.items() if hasattr(field.annotation, "model_fields")]
KEYS = [key.rpartition(".") for key in Config(threads=1).resolved().flat()]
WORDS = [b"=", b"[", b"]", b"[[", b".", b'"', b'"""', b"'", b"{", b"}", b"#", b"\n", b"\r", b"\x00", b"\xff", b"nan",
         b"inf", b"1979-05-27", b"0x" + b"f" * 5000, b"1" * 5000, b"1e999", b"-1", b"[game]", b"[seed]", b"self = 1",
         b"a" + b".a" * 900, b"a" + b".a" * 1500, b"[" * 3000, b"\\u0000", b"\\ud800", b"true", b"name"]  # fmt: skip


@st.composite
def toml_texts(draw):
    """Settings that exist, or nearly, with values that should not be theirs."""
    lines = []
    for section in ["", *draw(st.lists(st.sampled_from([*SECTIONS, "game", "unknown"]), unique=True, max_size=4))]:
        lines += [f"[{section}]"] if section else []
        known = [name for place, _, name in KEYS if place == section] or ["x"]
        names = st.one_of(st.sampled_from(known), st.sampled_from(["self", "name", "game.a.b", "a.b"]))
        lines += [
            f"{name} = {as_toml(draw(st.one_of(VALUES, DATES)))}"
            for name in draw(st.lists(names, unique=True, max_size=4))
        ]
    return "\n".join(lines).encode()


def settings_files(folder):
    path = folder / "config.toml"
    whole = Config(threads=1).resolved().to_toml().encode()

    def use():
        config = Config.from_toml(path).resolved()
        path.write_text(config.to_toml())
        assert Config.from_toml(path) == config

    def examine(data):
        path.write_bytes(data)
        taken = ends_well(use)
        assert os.listdir() == ["config.toml"]
        return taken

    return {"data": st.one_of(mutated_bytes(whole, WORDS), toml_texts())}, examine


def test_settings(tmp_path):
    assert fuzzed(settings_files, tmp_path)["refused"] > 20


# --- metrics --------------------------------------------------------------------------------------------------------

MATCH = {"opponent": "random", "win_rate": 0.5, "win_rate_ci95": [0.4, 0.6], "score_mean": 1.0}
LINE = {
    "iteration": 1, "nodes": 100, "traversals": 10, "threads": 2, "nodes_per_second": 1e4, "advantage_loss": 0.5,
    "policy_loss": None, "collect_seconds": 1.0, "iteration_seconds": 4.5, "iteration_batch_sizes": [1, 2, 30, 4],
    "exploitability": 0.5, "matches": [MATCH], "digest": "0" * 64, "advantage0_samples": 5, "infosets_sampled": 3,
    "infosets": 12,
}  # fmt: skip
TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\n", b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 5000,
          b"null", b"true", b'"iteration"', b'"x_seconds":', b'"matches":', b"[" * 2000, b"\\ud800", b"\x00",
          b"\xff"]  # fmt: skip


def metrics_files(folder, with_pictures):
    run = folder / "run"
    run.mkdir(exist_ok=True)
    (run / "config.toml").write_text(Config(game={"name": "kuhn"}, threads=1).to_toml())
    path = run / "metrics.jsonl"
    lines = [LINE | {"iteration": number} for number in range(1, 4)]
    if with_pictures:
        from engine.report import write_report

    def use():
        for metrics in read_metrics(path):
            json.dumps(metrics, allow_nan=False)
            assert all(match.keys() >= MATCH.keys() for match in metrics.get("matches", []))
        if with_pictures:
            write_report([run], run / "report")
        else:
            MetricsLog(path).cut(2)
            assert len(read_metrics(path)) <= 3

    def examine(data):
        path.write_bytes(data)
        taken = ends_well(use)
        assert os.listdir() == ["run"] and {*os.listdir(run)} <= {"config.toml", "metrics.jsonl", "report"}
        return taken

    def text(lines):
        return "".join(json.dumps(line) + "\n" for line in lines).encode()

    return {"data": st.one_of(mutated_bytes(text(lines), TOKENS), mutated_json(lines).map(text))}, examine


def test_metrics(tmp_path):
    fuzzed(metrics_files, tmp_path, False)


@pytest.mark.slow
def test_metrics_in_pictures(tmp_path):
    fuzzed(metrics_files, tmp_path, True)


EXTREMES = [
    {"exploitability": 1e-320, "nodes_per_second": 1e100, "iteration_seconds": 1e100},
    {"exploitability": 1e100, "advantage_loss": -1e100, "policy_loss": 1e-320, "iteration": 1 << 53},
    {"iteration": 0, "iteration_seconds": -1.0, "collect_seconds": -1e100, "nodes": 10**99},
    {"iteration_batch_sizes": [10**99] * 64, "infosets_sampled": -0.5, "infosets": 1e100},
    {"matches": [MATCH | {"win_rate": 1e100, "win_rate_ci95": [-1e100, 1e100], "opponent": "$" * 500}] * 50},
]


def drawn(folder):
    """Reports of metrics at the ends of what is read."""
    metrics_files(folder, False)
    from engine.report import write_report

    run = folder / "run"
    for extreme in EXTREMES:
        lines = [LINE, LINE | {"iteration": 2} | extreme]
        run.joinpath("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert ends_well(write_report, [run], run / "report")


def test_extremes_are_drawn(tmp_path):
    confined(drawn, tmp_path)


# --- checkpoints ----------------------------------------------------------------------------------------------------


def rewritten(folder, change=lambda manifest: manifest, state=None):
    """A checkpoint changed by somebody who makes its checksums right."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest.pop("checksum", None)
    if state is not None:
        (folder / "state.pt").write_bytes(state)
        manifest["state"] = {"file": "state.pt", "bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}
    changed = change(manifest)
    manifest = manifest if changed is None else changed
    if isinstance(manifest, dict):
        manifest["checksum"] = checkpoint._checksum(manifest)
    path.write_text(json.dumps(manifest))


def vouched(folder, name, data):
    """A memory's file replaced, and the newest checkpoint's manifest made to agree."""
    (folder.parent / "memories" / name).write_bytes(data)

    def change(manifest):
        for about in manifest["memories"].values():
            for kind in ("base", "journal"):
                if about[kind]["file"] == name:
                    about[kind] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    rewritten(folder, change)


def saved(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def repacked(data, change, method=zipfile.ZIP_STORED):
    """An archive of torch's with change(name, bytes) of each entry."""
    source, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(out, "w", method, compresslevel=1) as archive:
        for entry in source.infolist():
            archive.writestr(entry.filename, change(entry.filename, source.read(entry)))
    return out.getvalue()


OPCODES = [b"cos\nsystem\n", b"cbuiltins\neval\n", b"c__builtin__\nexec\n", b"(S'touch evil'\ntR.", b"R", b"b",
           b".", b"(", b"t", b"}", b"]", b"e", b"u", b"s", b"0", b"2", b"Q", b"N", b"\x85", b"\x86", b"\x87", b"\x93",
           b"\x81", b"K\xff", b"M\xff\xff", b"J\xff\xff\xff\x7f", b"\x8a\x08" + b"\xff" * 7 + b"\x7f", b"q\x00",
           b"h\x00",
           b"X\x04\x00\x00\x00meta", b"ctorch\nSize\n", b"ctorch._utils\n_rebuild_sparse_tensor\n",
           b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n", b"ctorch\nDoubleStorage\n"]  # fmt: skip


def toy_run(folder):
    """A run with a checkpoint whose memories are a base and a journal, to be copied."""
    Toy(folder, keep=1, compact_above=1000).train(6)
    memories = [path.name for path in (folder / "checkpoints" / "memories").iterdir()]
    assert any(".base-" in name for name in memories) and any(".journal-" in name for name in memories)
    return folder


def gone_on(run):
    """Read it as an agent does, then as a run does that goes on, and save what follows."""
    read_checkpoint(run, lambda text: None)
    memories = {name: types.SimpleNamespace(rows=np.zeros(size, np.uint8), seen=0) for name, size in SIZES.items()}
    store = CheckpointStore(run, 1, memories, {"seed": 1}, notify=lambda text: None, compact_above=1000)
    store.resume()


def checkpoint_files(folder, original):
    run, outside = folder / "run", folder / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").write_text("kept")
    os.chdir(outside)
    newest = list_checkpoints(original / "checkpoints")[0]
    manifest = json.loads((newest / "manifest.json").read_bytes())
    state = (newest / "state.pt").read_bytes()
    memories = {path.name: path.read_bytes() for path in (original / "checkpoints" / "memories").iterdir()}
    with zipfile.ZipFile(io.BytesIO(state)) as archive:
        [pickled] = [archive.read(entry) for entry in archive.infolist() if entry.filename.endswith("data.pkl")]

    files = st.one_of(
        st.tuples(st.just("manifest"), mutated_json(manifest)),
        st.tuples(st.just("text"), mutated_bytes((newest / "manifest.json").read_bytes(), TOKENS)),
        st.tuples(st.just("state"), mutated_bytes(state, [b"PK\x01\x02", b"PK\x05\x06", b"\xff" * 8, b"\x00" * 8])),
        st.tuples(st.just("pickle"), mutated_bytes(pickled, OPCODES)),
        *(st.tuples(st.just(name), mutated_bytes(data, [b"\xff" * 8])) for name, data in memories.items()),
    )

    def examine(changed):
        what, value = changed
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(original, run)
        [target] = list_checkpoints(run / "checkpoints")
        if what == "manifest":
            rewritten(target, lambda manifest: value)
        elif what == "text":
            (target / "manifest.json").write_bytes(value)
        elif what == "state":
            rewritten(target, state=value)
        elif what == "pickle":
            rewritten(target, state=repacked(state, lambda name, own: value if name.endswith("data.pkl") else own))
        else:
            vouched(target, what, value)
        taken = ends_well(gone_on, run)
        assert contents(outside) == {"kept": b"kept"}
        return taken

    return {"changed": files}, examine


def test_checkpoints(tmp_path):
    counts = fuzzed(checkpoint_files, tmp_path, toy_run(tmp_path / "original"))
    assert counts["refused"] > 20


def a_bomb(target, outside):
    data = saved({"networks": {"strategy": {"weight": torch.zeros(40 << 20)}}, "optimizers": {}})
    rewritten(target, state=repacked(data, lambda name, own: own, zipfile.ZIP_DEFLATED))


def a_hole(target, outside):
    """A file that takes no room on the disk."""
    size, hasher = 160 << 20, hashlib.sha256()
    os.truncate(target / "state.pt", 0)
    os.truncate(target / "state.pt", size)
    for _ in range(size >> 20):
        hasher.update(bytes(1 << 20))
    rewritten(target, lambda m: m.update(state={"file": "state.pt", "bytes": size, "sha256": hasher.hexdigest()}))


def the_first_format(target, outside):
    """Of torch, which says itself how much room its tensors need."""
    buffer = io.BytesIO()
    torch.save({"networks": torch.zeros(77), "optimizers": {}}, buffer, _use_new_zipfile_serialization=False)
    rewritten(target, state=buffer.getvalue().replace(b"K\x4d", b"J" + (1 << 28).to_bytes(4, "little")))


def a_command(target, outside):
    rewritten(target, state=saved({"networks": Evil(), "optimizers": {}}))


def an_endless_manifest(target, outside):
    (target / "manifest.json").unlink()
    (target / "manifest.json").symlink_to("/dev/zero")


def a_deep_manifest(target, outside):
    rewritten(target, lambda manifest: manifest.update(totals=deep(900, list)))


def an_endless_state(target, outside):
    (target / "state.pt").unlink()
    (target / "state.pt").symlink_to("/dev/zero")


def a_beginning_that_is_a_file(target, outside):
    (target.parent / ".iteration-000007.tmp").touch()


def a_beginning_that_is_a_link(target, outside):
    (target.parent / ".iteration-000007.tmp").symlink_to(outside)


def a_beginning_that_is_a_folder(target, outside):
    (target / ".state.pt.tmp").mkdir()


def a_link_to_others_beginnings(target, outside):
    (outside / ".other.tmp").write_text("kept")
    (target.parent / "link").symlink_to(outside)


def a_link_in_place_of_a_journal(target, outside):
    """Of no entries yet, so that there is nothing to verify."""
    manifest = json.loads((target / "manifest.json").read_bytes())
    name = manifest["memories"]["strategy"]["journal"]["file"]
    vouched(target, name, b"")
    (target.parent / "memories" / name).unlink()
    (target.parent / "memories" / name).symlink_to(outside / "kept")


def a_link_in_place_of_a_folder(name, target, outside):
    folder = target.parent / name if name != "iteration" else target
    moved = outside / name
    shutil.move(folder, moved)
    folder.symlink_to(moved)


FOLDERS = {f"a link in place of {name}": functools.partial(a_link_in_place_of_a_folder, name)
           for name in ("memories", "networks", "iteration")}  # fmt: skip
CASES = {
    case.__name__.replace("_", " "): case
    for case in (
        a_bomb, a_hole, the_first_format, a_command, an_endless_manifest, a_deep_manifest, an_endless_state,
        a_beginning_that_is_a_file, a_beginning_that_is_a_link, a_beginning_that_is_a_folder,
        a_link_to_others_beginnings, a_link_in_place_of_a_journal,
    )
} | FOLDERS  # fmt: skip


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return toy_run(tmp_path_factory.mktemp("toy") / "run")


def trained_on(run):
    read_checkpoint(run, lambda text: None)
    Toy(run, keep=1, compact_above=1000).train(8)


@pytest.mark.parametrize("case", CASES)
def test_checkpoints_made_by_hand(tmp_path, toy, case):
    run, outside = shutil.copytree(toy, tmp_path / "run"), tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    [target] = list_checkpoints(run / "checkpoints")
    CASES[case](target, outside)
    before = contents(outside)
    confined(ends_well, trained_on, run, room=128 << 20)
    assert contents(outside) == before and not (tmp_path / "evil").exists()


# --- agents and whole runs ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs that came to their ends, each with one checkpoint: kuhn has a network that plays, leduc past ones."""
    folders = {}
    for name in ("kuhn", "leduc"):
        folder = tmp_path_factory.mktemp(name)
        path, _ = written(folder, name, checkpoint={"keep": 1})
        assert freecfr("train", path, "--run", folder / "run").status == 0
        folders[name] = folder / "run"
    return folders


@pytest.fixture(params=["kuhn", "leduc"])
def finished(request, runs):
    return runs[request.param]


def played(run):
    """What `freecfr eval` asks of it."""
    agent = load_agent(run)
    if (tree := solvable(agent.game)) is not None:
        evaluate_strategy(tree, agent.strategy_on(tree))
    with Pool(1) as pool:
        play_match(agent.game, agent, "random", games=2, seed=0, pool=pool)


TENSORS = [torch.ones(3), torch.ones(16, 30), torch.ones(2, dtype=torch.complex64), torch.ones(2).to_sparse(),
           torch.ones(2, device="meta"), torch.ones((), dtype=torch.int64), torch.full((1,), np.nan),
           torch.ones(1).expand(1 << 20, 1 << 20), torch.ones(2, dtype=torch.float64)]  # fmt: skip


def edited(state, edits):
    """A network's state_dict after (name, act, value) edits."""
    state = dict(state)
    for name, act, value in edits:
        tensor = state.pop(name)
        if act == "fill":
            state[name] = torch.full_like(tensor, value)
        elif act == "tensor":
            state[name] = TENSORS[value]
        elif act == "value":
            state[name] = value
        elif act == "rename":
            state[value] = tensor
    return state


def edits_of(state):
    acts = st.one_of(
        st.tuples(st.just("fill"), st.sampled_from([np.nan, np.inf, -np.inf, 3e38])),
        st.tuples(st.just("tensor"), st.integers(0, len(TENSORS) - 1)),
        st.tuples(st.just("value"), VALUES),
        st.tuples(st.just("rename"), TEXTS),
        st.just(("drop", None)),
    )
    names = st.lists(st.sampled_from([*state]), min_size=1, max_size=2, unique=True)
    return names.flatmap(lambda names: st.tuples(*(acts.map(lambda act, name=name: (name, *act)) for name in names)))


def agent_files(folder, original):
    run = folder / "run"
    os.chdir(folder)
    [newest] = list_checkpoints(original / "checkpoints")
    manifest = json.loads((newest / "manifest.json").read_bytes())
    state = torch.load(newest / "state.pt", weights_only=True)
    past = [path.name for path in (original / "checkpoints").glob("networks/*")]
    name = "strategy" if "strategy" in state["networks"] else "advantage0"

    def examine(changed):
        what, value = changed
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(original, run)
        [target] = list_checkpoints(run / "checkpoints")
        if what == "state":
            networks = state["networks"] | {name: edited(state["networks"][name], value)}
            rewritten(target, state=saved(state | {"networks": networks}))
        elif what == "network":
            data = saved(edited(state["networks"][name], value))
            (run / "checkpoints" / "networks" / past[0]).write_bytes(data)
            about = {"file": past[0], "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            sequence = {
                player: [entry | about if entry["file"] == past[0] else entry for entry in entries]
                for player, entries in manifest["sequence"].items()
            }
            rewritten(target, lambda manifest: {**manifest, "sequence": sequence})
        else:
            rewritten(target, lambda manifest: {**manifest, what: value})
        taken = ends_well(played, run)
        assert os.listdir(folder) == ["run"]
        return taken

    files = [st.tuples(st.just(key), mutated_json(manifest[key])) for key in ("config", "sequence") if manifest[key]]
    files.append(st.tuples(st.just("network" if past else "state"), edits_of(state["networks"][name])))
    return {"changed": st.one_of(files)}, examine


def test_agents(tmp_path, finished):
    counts = fuzzed(agent_files, tmp_path, finished)
    assert counts["refused"] > 10


def config_with(line):
    def change(run):
        with open(run / "config.toml", "a") as file:
            file.write(line)

    return change


def metrics_with(text):
    def change(run):
        with open(run / "metrics.jsonl", "a") as file:
            file.write(text + "\n")

    return change


def manifest_with(**values):
    def change(run):
        rewritten(list_checkpoints(run / "checkpoints")[0], lambda manifest: manifest.update(values))

    return change


def memory_with(**values):
    def change(run):
        [target] = list_checkpoints(run / "checkpoints")
        rewritten(target, lambda manifest: manifest["memories"]["advantage0"].update(values))

    return change


def settings_with(values):
    def change(run):
        rewritten(list_checkpoints(run / "checkpoints")[0], lambda manifest: manifest["config"].update(values))

    return change


def state_with(change_state):
    def change(run):
        [target] = list_checkpoints(run / "checkpoints")
        state = torch.load(target / "state.pt", weights_only=True)
        change_state(state)
        rewritten(target, state=saved(state))

    return change


def fill(value):
    def change(state):
        for network in state["networks"].values():
            for tensor in network.values():
                tensor.fill_(value)

    return state_with(change)


def network_of(name, **values):
    return state_with(lambda state: state["networks"].update({name: values}))


def link(name):
    def change(run):
        outside = run.parent / "outside"
        shutil.rmtree(run / "report")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside if name == "report" else outside / "kept")

    return change


def samples_of_a_later_iteration(run):
    """Whose weight would be read from beyond the array of them."""
    layout = RecordLayout(load_game("kuhn"))
    [target] = list_checkpoints(run / "checkpoints")
    [path] = (run / "checkpoints" / "memories").glob("advantage0.journal-*")
    entries = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 8 + layout.record_bytes).copy()
    entries[:, 8 + layout.iteration_at : 8 + layout.slots_at] = 0xFF
    vouched(target, path.name, entries.tobytes())


# case -> how the run is changed, the commands that have to end well, and their statuses.
WHOLE = {
    "self": (config_with("\nself = 1\n"), {"train": 2, "report": 2}),
    "a huge number": (config_with("\n[unknown]\nx = 0x" + "f" * 5000), {"train": 2, "report": 2}),
    "many dots": (config_with("\n[unknown]\n" + ".".join("a" * 5000) + " = 1"), {"train": 2, "report": 2}),
    "odd metrics": (
        metrics_with('{"iteration": 5, "exploitability": "x", "matches": [{"opponent": 3}], "nodes": Infinity}'),
        {"train": 0, "report": 0},
    ),
    "settings that are odd": (settings_with({"seed.x": 1}), {"eval": 2}),
    "another network": (settings_with({"network.hidden": 16384, "network.layers": 64}), {"eval": 2, "train": 2}),
    "another game": (settings_with({"game.name": "leduc"}), {"eval": 2, "train": 2}),
    "no settings": (manifest_with(config={}), {"eval": 2}),
    "no number": (fill(np.nan), {"eval": 2, "train": 1}),
    "large weights": (fill(3e38), {"eval": 2, "train": 1}),
    "no weights": (network_of("strategy"), {"eval": 2}),
    "odd weights": (network_of("strategy", weight=torch.ones(2).to_sparse()), {"eval": 2}),
    "weights for the trainer": (network_of("advantage0", weight=torch.ones(2)), {"train": 2}),
    "no networks": (state_with(lambda state: state.update(networks=3)), {"eval": 2, "train": 2}),
    "no optimizers": (state_with(lambda state: state.update(optimizers={})), {"train": 2}),
    "odd optimizers": (
        state_with(lambda state: state["optimizers"]["advantage0"].update(param_groups=[{"params": [0, 1]}])),
        {"train": 2},
    ),
    "odd totals": (manifest_with(totals={"nodes": "many", "traversals": 1}), {"train": 2}),
    "other totals": (manifest_with(totals={"x": 1}), {"train": 2}),
    "another iteration": (manifest_with(iteration=2), {"train": 2}),
    "an iteration before all": (manifest_with(iteration=-5), {"train": 2}),
    "samples seen by halves": (memory_with(seen=1e9, size=150), {"train": 2}),
    "more samples seen than can be": (memory_with(seen=1 << 70, size=150), {"train": 2}),
    "samples of a later iteration": (samples_of_a_later_iteration, {"train": 2}),
    **{f"a link in place of {name}": (link(name), {"train": 2})
       for name in (".lock", ".config.toml.tmp", "metrics.jsonl", "run.json", "config.toml")},
    "a link in place of report": (link("report"), {"report": 2, "train": 0}),
}  # fmt: skip


@pytest.mark.parametrize(
    "case, command, status",
    [
        pytest.param(case, command, status, id=f"{case}-{command}")
        for case, (_, commands) in WHOLE.items()
        for command, status in commands.items()
    ],
)
def test_whole_runs(tmp_path, runs, case, command, status):
    run, outside = shutil.copytree(runs["kuhn"], tmp_path / "run"), tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text((run / "config.toml").read_text())
    WHOLE[case][0](run)
    before = contents(outside)
    given = shutil.copy(runs["kuhn"] / "config.toml", tmp_path / "given.toml")
    arguments = {
        "eval": ["eval", run, "--games", 2, "--threads", 1],
        "report": ["report", run],
        "train": ["train", given, "--run", run, "--resume", "--threads", 1, "--set", "iterations=6"],
    }
    ended = freecfr(*arguments[command], before=functools.partial(little_room, 2 * ROOM))
    assert ended.status == status, ended.err
    assert "Traceback" not in ended.err and len(ended.err) < 5000
    if status:
        assert [line for line in ended.err.splitlines() if line.startswith("freecfr: ")]
    assert contents(outside) == before


# --- for long -------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 1800)
def test_readers_for_long(tmp_path, runs, capsys):
    readers = {
        "settings": (settings_files,),
        "metrics": (metrics_files, False),
        "metrics in pictures": (metrics_files, True),
        "checkpoints": (checkpoint_files, toy_run(tmp_path / "toy")),
        **{f"agents of {name}": (agent_files, run) for name, run in runs.items()},
    }
    for name, (prepare, *arguments) in readers.items():
        folder = tmp_path / name
        folder.mkdir()
        counts = fuzzed(prepare, folder, *arguments, seconds=SECONDS / len(readers))
        with capsys.disabled():
            print(f"\n{name}: {counts['taken']} taken, {counts['refused']} refused", end="", flush=True)
