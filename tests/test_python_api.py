"""From Python: train, with one's own network and callback; load what was trained, ask it and judge it."""

import pytest
import torch

from engine import Config, load_agent, load_game, nash_conv, train
from engine.checkpoint import list_checkpoints
from engine.errors import BadInput
from engine.metrics import read_metrics
from tests.run_folders import written


@pytest.fixture(scope="module", params=["kuhn", "leduc"])
def trained(request, tmp_path_factory):
    """A run's folder, and its last metrics."""
    folder = tmp_path_factory.mktemp("trained")
    path, _ = written(folder, request.param, iterations=4, evaluation={"every": 2})
    run = folder / "run"
    run.mkdir()
    return run, train(Config.from_toml(path), run_dir=run)


def decisions(state):
    """Every state of a game in which a player decides."""
    if state.is_terminal():
        return
    if not state.is_chance_node():
        yield state
    for action in state.legal_actions():
        yield from decisions(state.child(action))


def test_the_callback_sees_every_iteration_and_stops_the_run(tmp_path):
    path, _ = written(tmp_path, "kuhn", iterations=50)
    seen = []

    def f(metrics):
        seen.append(metrics)
        return metrics["iteration"] < 3

    assert train(Config.from_toml(path), on_iteration=f) == seen[-1]
    assert [metrics["iteration"] for metrics in seen] == [1, 2, 3]


def test_only_false_stops(tmp_path):
    path, config = written(tmp_path, "kuhn")
    assert train(Config.from_toml(path), on_iteration=lambda metrics: None)["iteration"] == config.iterations


def test_an_exception_of_the_callback_comes_through_and_loses_no_iteration(tmp_path):
    _, config = written(tmp_path, "kuhn", checkpoint={"every": 50})
    run = tmp_path / "run"
    run.mkdir()

    def f(metrics):
        if metrics["iteration"] == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(config, on_iteration=f, run_dir=run)
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == ["iteration-000002"]


def own_network(n_features, n_actions, config):
    return torch.nn.Sequential(torch.nn.Linear(n_features, 8), torch.nn.Tanh(), torch.nn.Linear(8, n_actions))


@pytest.mark.parametrize("name", ["kuhn", "leduc"])
def test_ones_own_network_is_trained_and_loaded(tmp_path, name):
    path, _ = written(tmp_path, name, training={"updates": 3, "batch_size": 64, "autocast": False})
    asked = []

    def factory(n_features, n_actions, config):
        asked.append((n_features, n_actions, config.game.name))
        return own_network(n_features, n_actions, config)

    run = tmp_path / "run"
    run.mkdir()
    metrics = train(Config.from_toml(path), network=factory, run_dir=run)
    game = load_game(name)
    assert set(asked) == {(game.n_features, game.num_distinct_actions(), name)}
    agent = load_agent(run, network=own_network)
    # The run may have evaluated an iteration before its last.
    if "nash_conv" in metrics:
        assert nash_conv(game, agent) == pytest.approx(metrics["nash_conv"], abs=1e-5)


def test_a_network_of_the_wrong_shape_is_refused(tmp_path):
    path, _ = written(tmp_path, "kuhn")
    with pytest.raises(ValueError, match="kuhn needs"):
        train(Config.from_toml(path), network=lambda n_features, n_actions, config: torch.nn.Linear(n_features, 7))


def test_an_agent_is_as_good_as_its_run_said(trained):
    run, metrics = trained
    agent = load_agent(run)
    assert nash_conv(agent.game, agent) == pytest.approx(metrics["nash_conv"], abs=1e-5)
    assert nash_conv(load_game(agent.game.name), agent.action_probabilities) == pytest.approx(
        metrics["nash_conv"], abs=1e-5
    )
    assert metrics["exploitability"] == metrics["nash_conv"] / 2


def test_an_agent_is_loaded_from_one_checkpoint(trained):
    run, _ = trained
    newest, before = list_checkpoints(run / "checkpoints")[:2]
    lines = {line["iteration"]: line for line in read_metrics(run / "metrics.jsonl")}
    for path in (newest, before):
        agent = load_agent(str(path))
        line = lines[int(path.name.rpartition("-")[2])]
        assert nash_conv(agent.game, agent) == pytest.approx(line["nash_conv"], abs=1e-5)


def test_probabilities_are_of_legal_actions_and_sum_to_1(trained):
    run, _ = trained
    agent = load_agent(run)
    states = list(decisions(load_game(agent.game.name).new_initial_state()))[::7]
    assert states
    for state in states:
        probabilities = agent.action_probabilities(state)
        assert list(probabilities) == state.legal_actions()
        assert all(0 <= probability <= 1 for probability in probabilities.values())
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-6)


def test_an_agent_is_not_asked_where_nobody_decides_or_in_another_game(trained):
    run, _ = trained
    agent = load_agent(run)
    with pytest.raises(ValueError, match="legal"):
        agent.action_probabilities(load_game(agent.game.name).new_initial_state())
    other = load_game({"kuhn": "leduc", "leduc": "kuhn"}[agent.game.name]).new_initial_state(seed=1)
    with pytest.raises(ValueError, match=agent.game.name):
        agent.action_probabilities(other)


@pytest.mark.parametrize("where", ["nothing", "config.toml", "run/metrics.jsonl", "run/checkpoints"])
def test_what_holds_no_agent_is_refused(trained, where):
    run, _ = trained
    with pytest.raises(BadInput, match="give|no checkpoint"):
        load_agent(run.parent / where)


def test_lost_cities_agents_answer_with_legal_actions(tmp_path):
    _, config = written(tmp_path, "lost_cities", iterations=1)
    run = tmp_path / "run"
    run.mkdir()
    train(config, run_dir=run)
    agent = load_agent(run)
    state = agent.game.new_initial_state(seed=7)
    for _ in range(10):
        probabilities = agent.action_probabilities(state)
        assert list(probabilities) == state.legal_actions() and sum(probabilities.values()) == pytest.approx(1)
        state.apply_action(max(probabilities, key=probabilities.get))
