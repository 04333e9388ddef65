from __future__ import annotations

import json
from pathlib import Path

import pytest

from kgmlm.core.config import Protocol, Settings, dump_settings, load_protocol, load_settings
from kgmlm.core.errors import ConfigError


def test_settings_survive_a_round_trip(tmp_path: Path) -> None:
    settings = load_settings(None, ["training.epochs=3", "scoring.end_of_name=true", "text.template=natural"])
    path = tmp_path / "config.toml"
    path.write_text(dump_settings(settings))
    assert load_settings(path) == settings
    assert settings.training.epochs == 3
    assert settings.scoring.end_of_name is True
    assert settings.text.template == "natural"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epoch=3", "unknown key 'training.epoch'"),
        ("training.epochs=-1", "training.epochs"),
        ("training.objective=guess", "training.objective"),
        ("epochs", "KEY=VALUE"),
        ("training.epochs.x=1", "training.epochs"),
        ("training.epochs=inf", "'training.epochs' is inf"),
        ("training.seed=4294967296", "'training.seed' is 4294967296"),
        ("kge.seed=-1", "'kge.seed' is -1"),
        ("training.batch_size=18446744073709551616", "'training.batch_size' is 18446744073709551616"),
        (
            "vector.memory=9223372036854775807",
            "'vector.memory' is 9223372036854775807: at most 4,294,967,295",
        ),
        (f"training.seed=1{'0' * 5000}", "--set training.seed=1000"),
        (f"training.seed=0x1{'0' * 5000}", "'training.seed' is a value that cannot be shown"),
        ("vector.temperature=inf", "'vector.temperature' is inf"),
        ("vector.temperature=nan", "'vector.temperature' is nan"),
        ("training.eval_every=nan", "'training.eval_every' is nan"),
        ("training.weight_decay=inf", "'training.weight_decay' is inf"),
        ("kge.learning_rate=1e308", r"'kge.learning_rate' is 1e\+308: at most 1e\+30"),
        ("training.epochs=" + "[" * 100_000, "nested too deeply"),
        ("training.epochs" + ".a" * 5000 + "=1", "training.epochs"),
        ("training.learning_rate=fast", "'training.learning_rate' is 'fast'"),
        ("training.learning_rate=-1", "'training.learning_rate' is -1"),
    ],
)
def test_a_wrong_override_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings(None, [override])


def test_an_unknown_key_in_a_file_names_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[scoring]\nspan = 4\n")
    with pytest.raises(ConfigError, match=r"mine\.toml: unknown key 'scoring\.span'"):
        load_settings(path)


def test_what_is_set_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[training]\nepochs = 2\n")
    with pytest.raises(ConfigError, match=r"^--set: unknown key 'training\.epoch'"):
        load_settings(path, ["training.epoch=3"])
    with pytest.raises(ConfigError, match=r"^--set: 'training\.epochs' is -1"):
        load_settings(None, ["training.epochs=-1"])
    assert load_settings(path, ["training.epochs=3", "training.seed=1"]).training.epochs == 3
    path.write_text("[training]\nepochs = -1\n")
    with pytest.raises(ConfigError, match=r"mine\.toml: 'training\.epochs' is -1"):
        load_settings(path, ["training.seed=1"])
    path.write_text('split = "test"\n')
    with pytest.raises(ConfigError, match=r"^the protocol asked for: 'max_triples' is -1"):
        load_protocol(path, max_triples=-1)


def test_never_is_infinity(tmp_path: Path) -> None:
    given = ("training.eval_every=inf", "training.checkpoint_minutes=inf")
    settings = load_settings(None, given)
    path = tmp_path / "config.toml"
    path.write_text(dump_settings(settings))
    assert load_settings(path) == settings
    assert settings.training.eval_every == float("inf")
    assert "Infinity" not in json.dumps(settings.model_dump(mode="json")), "no JSON"


@pytest.mark.parametrize("text", ["[scoring", "\xff", "a = " + "[" * 100_000, f"a = 1{'0' * 5000}"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="TOML"):
        load_settings(path)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no settings file"):
        load_settings(tmp_path / "none.toml")


def test_protocol_takes_overrides_but_not_none() -> None:
    assert load_protocol(None, split="valid", max_triples=None).split == "valid"
    assert load_protocol(None, split=None).split == "test"


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().training.epochs = 4  # type: ignore[misc]


def test_test_triples_are_known_only_where_test_is_asked(tmp_path: Path) -> None:
    assert Protocol().filter == load_protocol(None).filter == ("train", "valid", "test")
    assert Protocol(split="valid").filter == load_protocol(None, split="valid").filter == ("train", "valid")
    path = tmp_path / "mine.toml"
    path.write_text('split = "valid"\nfilter = ["train", "valid", "test"]\n')
    assert load_protocol(path).filter == ("train", "valid", "test"), "a file may say otherwise"


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("training.epochz", "training.epochs"),
        ("training.num_epochs", "training.epochs"),
        ("scoring.span", ""),
        ("trainin.epochs", "training"),
        ("span_length", "scoring.span_length"),
        ("epochs", "training.epochs"),
        ("kge.dim", ""),
        ("kge.dimensions", "kge.dimension"),
        ("nonsense.of.mine", ""),
    ],
)
def test_an_unknown_key_has_a_suggestion(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigError, match="unknown key") as caught:
        load_settings(None, [f"{wrong}=1"])
    assert str(caught.value).partition("did you mean ")[2] == (f"'{meant}'?" if meant else "")


def test_settings_that_are_retired_are_dropped_of_runs_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[training]\nepochs = 3\ndistillation = 1.0\n")
    assert load_settings(path, of_run=True).training.epochs == 3
    with pytest.raises(ConfigError, match=r"unknown key 'training\.distillation'"):
        load_settings(path)
