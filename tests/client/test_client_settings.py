"""Settings: argument beats environment beats file, and a wrong one is named."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from roundoff.settings import SERVER_KEYS, Settings, SettingsError, load
from roundoff_server import settings as server_settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "roundoff.toml").write_text(text)


def test_defaults(folder: Path) -> None:
    assert load() == Settings(server=None, token=None, spool=None, spool_mib=1024, mode="online")


def test_argument_beats_environment_beats_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, 'server = "http://file:1"\ntoken = "file"\nspool = "spool"\n')
    assert (load().server, load().token, load().spool) == ("http://file:1", "file", Path("spool"))
    monkeypatch.setenv("ROUNDOFF_SERVER", "http://environment:1/")
    assert (load().server, load().token) == ("http://environment:1", "file")
    assert load(server="argument:1").server == "http://argument:1"


def test_the_working_folder_beats_the_users(folder: Path) -> None:
    write(platformdirs.user_config_path("roundoff"), 'token = "user"')
    assert load().token == "user"
    write(folder, 'token = "here"')
    assert load().token == "here"


def test_the_servers_keys_are_passed_over(folder: Path) -> None:
    write(folder, 'database_url = "sqlite:///x.db"\nport = 1\ntoken = "t"')
    assert load().token == "t"


def test_both_sides_know_each_others_keys() -> None:
    assert set(server_settings.ServerSettings.model_fields) == SERVER_KEYS
    assert set(Settings.model_fields) == server_settings.CLIENT_KEYS


def test_an_unknown_key_is_named_with_a_cure(folder: Path) -> None:
    write(folder, 'sever = "http://x"')
    with pytest.raises(SettingsError, match=r"roundoff\.toml has the unknown setting 'sever'.*'server'"):
        load()


def test_broken_toml_is_named(folder: Path) -> None:
    write(folder, "server = ")
    with pytest.raises(SettingsError, match=r"roundoff\.toml is not valid TOML"):
        load()


def test_wrong_values_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"mode = 'offlne'.*'online', 'offline' or 'disabled'"):
        load(mode="offlne")
    with pytest.raises(SettingsError, match="spool_mib = 0"):
        load(spool_mib=0)
    with pytest.raises(SettingsError, match="begins with http://"):
        load(server="ftp://x")
    monkeypatch.setenv("ROUNDOFF_MODE", "of")
    with pytest.raises(SettingsError, match="mode = 'of'"):
        load()


def test_a_token_is_never_shown(folder: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(token=["hunter2"])
    assert "hunter2" not in str(caught.value)


def test_a_wrong_value_in_the_file_names_the_file(folder: Path) -> None:
    write(folder, 'mode = "sometimes"')
    with pytest.raises(SettingsError, match=r"roundoff\.toml"):
        load()
