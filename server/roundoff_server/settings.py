"""Settings of the server: flag beats environment beats file.

The file is `roundoff.toml` in the working folder, else in the user's configuration folder. The client reads
its own keys from the same file.
"""

from __future__ import annotations

import ipaddress
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

FILE_NAME = "roundoff.toml"

CLIENT_KEYS = frozenset({"server", "token", "spool", "spool_mib", "mode"})
"""Keys of the client's settings in the same file; the server passes over them."""


class SettingsError(ValueError):
    """A setting cannot be used; the message names it, its place and what may stand there."""


def default_database() -> str:
    """A SQLite file in the user's data folder."""
    return f"sqlite:///{platformdirs.user_data_path('roundoff') / 'roundoff.db'}"


class ServerSettings(BaseSettings):
    """What the server reads. Every field is also `ROUNDOFF_` + its name in capitals in the environment.

    - `database_url`: SQLAlchemy URL or the path of a SQLite file; default a file in the user's data folder
    - `host`, `port`: where to listen; default 127.0.0.1:8765
    - `admin_token`: a token that may everything, beside those in the database
    - `proxies`: addresses of proxies that say who asks and whether by https, joined by commas; * for any
    - `insecure`: ask nobody for a token, also beyond this machine
    - `log_level`: debug, info (a line for each request), warning or error; `log_format`: text or json
    """

    model_config = SettingsConfigDict(env_prefix="ROUNDOFF_", extra="forbid", env_ignore_empty=True)

    database_url: str = Field(default_factory=default_database)
    host: str = "127.0.0.1"
    port: int = Field(8765, ge=0, le=65535)
    admin_token: SecretStr | None = Field(None, min_length=8)
    insecure: bool = False
    proxies: str = "127.0.0.1"
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_format: Literal["text", "json"] = "text"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, _File(settings_cls)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def token(self) -> str | None:
        """The admin token in the clear."""
        return None if self.admin_token is None else self.admin_token.get_secret_value()


class _File(PydanticBaseSettingsSource):
    """The settings file as the last source."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # the whole file is read at once

    def __call__(self) -> dict[str, Any]:
        for folder in (Path.cwd(), platformdirs.user_config_path("roundoff")):
            path = folder / FILE_NAME
            try:
                text = path.read_text(encoding="utf-8")
            except OSError:
                continue
            return _written(path, text)
        return {}


def _written(path: Path, text: str) -> dict[str, Any]:
    try:
        written = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    own = set(ServerSettings.model_fields)
    known = own | CLIENT_KEYS
    for key in written:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise SettingsError(f"{path} has the unknown setting {key!r}: {hint}")
    return {key: value for key, value in written.items() if key in own}


def load(**flags: Any) -> ServerSettings:
    """The settings now; `flags` that are None do not count. Raises SettingsError."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = ServerSettings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        shown = "…" if name == "admin_token" else repr(first["input"])
        raise SettingsError(
            f"setting {name} = {shown}: {first['msg'].removeprefix('Value error, ')}; it comes from a flag, "
            f"ROUNDOFF_{name.upper()} or {FILE_NAME}"
        ) from None
    return settings
