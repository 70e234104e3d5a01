"""Settings: defaults, files, overrides, what is left open, and a sentence for everything impossible."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from engine import hardware
from engine.config import NOT_BUILT, Config, changes, default_block, default_shards
from engine.config_text import nest
from engine.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


def kuhn(**settings):
    return Config(**{"game": {"name": "kuhn"}, **settings})


def refusal(*overrides, start=None):
    with pytest.raises(ConfigError) as caught:
        (start or kuhn()).with_overrides(overrides)
    return caught.value.problems


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_committed_configs_are_valid(path):
    config = Config.from_toml(path)
    assert config.game.name in {"smoke": "kuhn"}.get(path.stem, path.stem)


def test_there_are_configs():
    assert [path.stem for path in CONFIGS] == ["kuhn", "leduc", "lost_cities", "smoke"]


def test_defaults_are_those_of_the_full_game():
    config = Config()
    assert config.game.name == "lost_cities"
    assert (config.traversal.count, config.training.updates, config.training.batch_size) == (280, 512, 1024)
    assert (config.network.hidden, config.network.layers, config.memory.capacity) == (512, 3, 2_000_000)


def test_settings_are_frozen():
    with pytest.raises(ValidationError):
        kuhn().seed = 3
    with pytest.raises(ValidationError):
        kuhn().training.updates = 3


@pytest.mark.parametrize("settings", [{}, {"evaluation": {"opponents": ["random", "noisy(random,0.5)"]}}])
def test_toml_round_trip_writes_every_default(tmp_path, settings):
    config = kuhn(**settings).resolved()
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    again = Config.from_toml(path)
    assert again == config and not changes(again, config)
    assert "[checkpoint]" in config.to_toml() and "clip_norm = 1.0" in config.to_toml()


def test_resolved_writes_what_a_game_left_out(tmp_path):
    config = Config().resolved()
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert "deck_only_after = 400" in path.read_text()
    assert Config.from_toml(path) == config


def test_nothing_is_left_open_after_resolved(monkeypatch):
    monkeypatch.setattr(hardware, "cuda_devices", lambda: 0)
    monkeypatch.setattr(hardware, "device_has_bf16", lambda device: True)
    config = kuhn().resolved()
    assert "auto" not in config.flat().values()
    assert config.threads >= 1 and config.device == "cpu"
    assert config.inference_dtype == "bfloat16" and config.training.autocast is True
    assert (config.traversal.block, config.traversal.lanes, config.training.shards) == (35, 35, 2)
    assert config.resolved() == config


def test_resolved_follows_the_processor(monkeypatch):
    monkeypatch.setattr(hardware, "cuda_devices", lambda: 0)
    monkeypatch.setattr(hardware, "device_has_bf16", lambda device: False)
    config = kuhn().resolved()
    assert config.inference_dtype == "float32" and config.training.autocast is False


def test_device_must_be_there(monkeypatch):
    monkeypatch.setattr(hardware, "cuda_devices", lambda: 1)
    monkeypatch.setattr(hardware, "device_has_bf16", lambda device: True)
    assert kuhn().resolved().device == "cuda"
    assert kuhn(device="cuda:0").resolved().device == "cuda:0"
    with pytest.raises(ConfigError, match="device is 'cuda:1', but torch sees 1 CUDA devices"):
        kuhn(device="cuda:1").resolved()


@pytest.mark.parametrize("count", [1, 7, 8, 9, 11, 23, 64, 100, 127, 280, 1009, 5000])
def test_a_player_has_at_least_eight_blocks(count):
    block = default_block(count)
    assert -(-count // block) >= min(8, count)
    if any(count % blocks == 0 for blocks in range(8, 17)):
        assert count % block == 0


@pytest.mark.parametrize(
    "batch, products, shards",
    [(1, 1, 1), (512, 10_000, 1), (1024, 37_000, 2), (1024, 938_496, 2), (1000, 938_496, 2), (1023, 938_496, 1),
     (2048, 938_496, 4), (1 << 20, 938_496, 16), (2, 1 << 40, 2)],
)  # fmt: skip
def test_shards_divide_a_batch_and_are_worth_their_while(batch, products, shards):
    assert default_shards(batch, products) == shards
    assert batch % shards == 0


def test_overrides_are_toml_values_and_bare_words():
    config = kuhn().with_overrides(
        ["seed=7", "device=cpu", 'algorithm="external_sampling"', "training.learning_rate=1", "deterministic=true",
         "evaluation.opponents=['random']", " memory.capacity = 1_000 "]
    )  # fmt: skip
    assert (config.seed, config.device, config.algorithm) == (7, "cpu", "external_sampling")
    assert config.training.learning_rate == 1.0 and config.deterministic is True
    assert config.evaluation.opponents == ("random",) and config.memory.capacity == 1000


def test_overrides_reach_the_game():
    config = Config(game={"name": "lost_cities"}).with_overrides(["game.colours=3", "game.hand_size=4"])
    assert config.load_game().parameters["colours"] == 3
    assert config.flat()["game.hand_size"] == 4


@pytest.mark.parametrize(
    "override, says",
    [
        ("foo", "--set 'foo' is not KEY=VALUE"),
        ("=3", "--set '=3' is not KEY=VALUE"),
        ("seed.x=2", "seed is a setting, not a section"),
        ("trainng.updates=3", "no setting 'trainng'; did you mean 'training'?"),
        ("training.updats=3", "no setting 'training.updats'; did you mean 'training.updates'"),
        ("iteration=3", "no setting 'iteration'; did you mean 'iterations'"),
        ("training=3", "training is 3, but is a section of settings"),
        ("seed=-1", "seed is -1, but must be a whole number from 0"),
        ("seed=9223372036854775808", "but must be a whole number from 0 to 9223372036854775807"),
        ("iterations=0", "iterations is 0, but must be a whole number from 1"),
        ("threads=0", "threads is 0, but must be a whole number from 1 to 4096"),
        ("threads=two", "threads is 'two', but must be a whole number"),
        ("threads=true", "threads is True, but must be a whole number"),
        ("training.updates=2.5", "training.updates is 2.5, but must be a whole number"),
        ("training.batch_size=0", "training.batch_size is 0, but must be"),
        ("network.hidden=100000000000000000000000", "network.hidden is 100000000000000000000000, but must be"),
        ("network.layers=0", "network.layers is 0, but must be"),
        ("network.reset=cold", "network.reset is 'cold', but must be one of 'warm', 'reset'"),
        ("memory.capacity=-5", "memory.capacity is -5, but must be"),
        ("traversal.count=0", "traversal.count is 0, but must be"),
        ("traversal.exploration=2", "traversal.exploration is 2, but must be a number from 0 to 1"),
        ("traversal.exploration=0", "outcome_sampling must be able to reach every action"),
        ("training.learning_rate=0", "training.learning_rate is 0, but must be a number above 0"),
        ("training.learning_rate=nan", "training.learning_rate is nan"),
        ("training.clip_norm=inf", "training.clip_norm is inf"),
        ("training.shards=3", "training.shards = 3 does not divide"),
        ("training.autocast=yes", "training.autocast is 'yes', but must be true, false or 'auto'"),
        ("deterministic=1", "deterministic is 1, but must be true or false"),
        ("device=gpu", "device is 'gpu', but must be 'auto', 'cpu', 'cuda' or 'cuda:N'"),
        ("inference_dtype=float16", "inference_dtype is 'float16', but must be one of"),
        ("algorithm=external", "did you mean 'external_sampling'?"),
        ("average=mean", "average is 'mean', but must be one of 'strategy_network', 'advantage_sequence'"),
        ("seed=0x" + "f" * 4000, "seed is too long to be shown, but must be a whole number"),
        ("game.name=khun", "no game is called 'khun'; did you mean 'kuhn'?"),
        ("game.name=3", "game.name is 3, but must be a game's name in quotes"),
        ("game.colours=3", "colours"),
        ("evaluation.games=5", "evaluation.games is 5, but each deal is played twice"),
        ("evaluation.opponents=random", "evaluation.opponents is 'random', but must be a list of names"),
        ("evaluation.opponents=['opener']", "opener plays lost_cities, not kuhn"),
        ("evaluation.opponents=['randm']", "no bot is called 'randm'; did you mean random"),
    ],
)
def test_refusals(override, says):
    problems = refusal(override)
    assert len(problems) == 1
    assert says in problems[0]
    assert "\n" not in problems[0]
    assert "pydantic" not in problems[0] and "Input should" not in problems[0]


@pytest.mark.parametrize("key, value", [(key, value) for key, values in NOT_BUILT.items() for value in values])
def test_what_is_not_built_yet_is_named(key, value):
    [problem] = refusal(f"{key}={value}")
    assert f"{key} is {value!r}, which is not built yet; there are: " in problem


def test_every_problem_is_named_at_once():
    problems = refusal("seed=-1", "training.updates=0", "bogus=1")
    assert len(problems) == 3


def test_external_sampling_is_for_short_games():
    [problem] = refusal('algorithm="external_sampling"', start=Config())
    assert "can last 488 decisions" in problem and "outcome_sampling" in problem
    [problem] = refusal('algorithm="external_sampling"', "game.deck_only_after=0", start=Config())
    assert "may last for ever" in problem


def test_impossible_game_parameters_are_config_errors():
    [problem] = refusal("game.colours=-1", start=Config())
    assert problem.startswith("game: ")
    [problem] = refusal("game.colours=99999999999999999999", start=Config())
    assert problem.startswith("game: ")


def test_many_problems_and_long_ones_are_cut_short():
    problems = refusal(*(f"bogus{number}=1" for number in range(500)))
    assert len(problems) == 51 and problems[-1] == "and 450 more; correct these first."
    [problem] = refusal("game.name=" + "k" * 60_000)
    assert len(problem) < 2100 and problem.startswith("game: no game") and problem.endswith("lost_cities")


def test_a_setting_may_be_called_as_an_argument_of_python_is(tmp_path):
    (tmp_path / "config.toml").write_text("self = 1\n")
    with pytest.raises(ConfigError, match="there is no setting 'self'"):
        Config.from_toml(tmp_path / "config.toml")


@pytest.mark.parametrize("flat", [{"a": 1, "a.b": 2}, {"a.b": 2, "a.b.c": 3}])
def test_dotted_keys_that_contradict_each_other(flat):
    with pytest.raises(ConfigError, match="would be its section"):
        nest(flat)


def test_files_that_are_none(tmp_path):
    (tmp_path / "half.toml").write_text("seed = ")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 60_000)
    (tmp_path / "large.toml").write_bytes(b"#" * (2 << 20))
    (tmp_path / "endless.toml").symlink_to("/dev/zero")
    (tmp_path / "dots.toml").write_text(".".join("a" * 20_000) + " = 1")
    for path, says in {
        tmp_path: "is a folder",
        tmp_path / "nope.toml": "does not exist",
        tmp_path / "half.toml": "is not valid TOML",
        tmp_path / "binary.toml": "is not UTF-8",
        tmp_path / "deep.toml": "is not valid TOML",
        tmp_path / "large.toml": "too many for a config",
        tmp_path / "endless.toml": "too many for a config",
        tmp_path / "dots.toml": "over 1000 dots in a line",
    }.items():
        with pytest.raises(ConfigError, match=says) as caught:
            Config.from_toml(path)
        assert len(caught.value.problems) == 1


def test_schedules():
    def rates(schedule):
        training = kuhn(training={"schedule": schedule, "updates": 4, "learning_rate": 0.1}).training
        return [training.rate(update) for update in range(4)]

    assert rates("constant") == [0.1] * 4
    assert rates("linear") == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert rates("cosine") == pytest.approx([0.1, 0.0853553, 0.05, 0.0146447], rel=1e-5)


def test_changes_names_what_differs():
    before, after = kuhn(), kuhn(seed=3, threads=2)
    assert changes(before, after) == {"seed": (0, 3), "threads": (None, 2)}
