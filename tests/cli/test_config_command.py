"""`kgmlm config`."""

from __future__ import annotations

import json
from pathlib import Path

from test_app import loaded_by
from typer.testing import CliRunner

from kgmlm.cli.app import app
from kgmlm.core.config import Protocol, Settings, TrainingSettings, load_protocol, load_settings


def printed(*options: str) -> str:
    done = CliRunner().invoke(app, ["config", *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def names() -> set[str]:
    return {f"{name}.{field}" for name, part in Settings() for field in type(part).model_fields}


def test_what_is_printed_is_a_settings_file_with_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(printed(), "utf-8")
    assert load_settings(path) == Settings()
    path.write_text(printed("--protocol"), "utf-8")
    assert load_protocol(path) == Protocol()


def test_every_setting_is_listed_with_its_meaning() -> None:
    text = printed()
    parsed = json.loads(printed("--json"))
    assert set(parsed) == names()
    for name, setting in parsed.items():
        assert len(setting["description"]) > 10, name
        line = f"{name.partition('.')[2]} ="
        assert f"\n{line}" in text or f"\n# {line}" in text, name
    assert parsed["training.epochs"] == {
        "default": 10,
        "description": TrainingSettings.model_fields["epochs"].description,
        "minimum": 0,
        "type": "number",
    }
    assert set(json.loads(printed("--protocol", "--json"))) == set(Protocol.model_fields)


def test_what_a_setting_may_be_is_said() -> None:
    text = printed().replace("\n# ", " ")
    assert '(an integer or "auto")\nspan_length = "auto"' in text
    assert '("vocabulary", "entities")\nsoftmax = "vocabulary"' in text
    assert "(a number, at least 0, less than 1) dropout =" in text, "not set, so a comment"


def test_lines_are_short_enough_for_a_terminal() -> None:
    assert max(map(len, printed().splitlines())) <= 105


def test_it_loads_nothing_heavy() -> None:
    assert loaded_by([["config"]], ("torch", "transformers", "pykeen", "pandas", "accelerate")) == [[]]
