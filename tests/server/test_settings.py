"""Flag beats environment beats file, and what cannot be read is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff import settings as client
from roundoff_server import settings
from roundoff_server.settings import ServerSettings, SettingsError, load


def test_flag_beats_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (load().host, load().port) == ("127.0.0.1", 8765)
    assert load().database_url.startswith("sqlite:///")
    assert load().database_url.endswith("roundoff/roundoff.db")
    Path("roundoff.toml").write_text(
        'port = 1111\nhost = "::1"\nserver = "http://x"\ntoken = "t"\nmode = "online"\n'
    )
    assert (load().port, load().host) == (1111, "::1")
    monkeypatch.setenv("ROUNDOFF_PORT", "2222")
    assert load().port == 2222
    assert load(port=3333, host=None).port == 3333
    assert load(port=3333).host == "::1"


def test_the_users_file_counts_where_the_folder_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    (config / "roundoff").mkdir(parents=True)
    (config / "roundoff" / "roundoff.toml").write_text("port = 1234\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    monkeypatch.chdir(tmp_path)
    assert load().port == 1234
    Path("roundoff.toml").write_text("")
    assert load().port == 8765


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown setting 'prot': did you mean 'port'"),
        ("xyzzy = 1", "unknown setting 'xyzzy': known are .*port"),
        ("port = 'x'", "setting port = 'x'"),
        ("port = 99999", "setting port = 99999"),
        ("port = ", "roundoff.toml is not valid TOML"),
        ("admin_token = 'short'", "setting admin_token = …"),
    ],
)
def test_a_bad_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("roundoff.toml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        load()


def test_client_and_server_pass_over_the_keys_of_each_other() -> None:
    assert set(ServerSettings.model_fields) == client.SERVER_KEYS
    assert set(client.Settings.model_fields) == settings.CLIENT_KEYS


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("127.9.9.9", True),
        ("0.0.0.0", False),
        ("::", False),
        ("db", False),
    ],
)
def test_what_others_can_reach(host: str, loopback: bool) -> None:
    assert load(host=host).loopback is loopback


def test_the_token_is_not_shown() -> None:
    assert "long enough" not in repr(load(admin_token="long enough"))
