"""Settings of the client and the command line: argument beats environment beats file.

The file is `roundoff.toml` in the working folder, else in the user's configuration folder. The server reads
its own keys from the same file.
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

DEFAULT_SERVER = "http://127.0.0.1:8765"
"""Where `roundoff serve` listens unless told otherwise."""

FILE_NAME = "roundoff.toml"

SERVER_KEYS = frozenset(
    {"admin_token", "database_url", "host", "insecure", "log_format", "log_level", "port", "proxies"}
)
"""Keys of the server's settings in the same file; the client passes over them."""

Mode = Literal["online", "offline", "disabled"]


class SettingsError(ValueError):
    """A setting has a value that cannot be used; the message names it, its place and what may stand there."""


class Settings(BaseSettings):
    """What the client reads. Every field is also `ROUNDOFF_` + its name in capitals in the environment.

    - `server`: address of the server; None looks for one on the default address
    - `token`: access token sent to the server
    - `spool`: folder for data on its way to the server
    - `spool_mib`: how much of it one process keeps at most, in MiB
    - `mode`: `online`; `offline`, which sends nothing; or `disabled`, which makes every call of a run a no-op
    """

    model_config = SettingsConfigDict(env_prefix="ROUNDOFF_", extra="forbid", env_ignore_empty=True)

    server: str | None = None
    token: str | None = None
    spool: Path | None = None
    spool_mib: int = Field(1024, ge=1)
    mode: Mode = "online"

    @property
    def spool_folder(self) -> Path:
        """The spool: as set, else in the user's folder for state."""
        return self.spool or platformdirs.user_state_path("roundoff") / "spool"

    @field_validator("server")
    @classmethod
    def _is_address(cls, server: str | None) -> str | None:
        if server is None:
            return None
        address = server if "://" in server else f"http://{server}"
        if not address.startswith(("http://", "https://")):
            raise ValueError("an address begins with http:// or https://, for instance " + DEFAULT_SERVER)
        return address.rstrip("/")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del settings_cls, dotenv_settings, file_secret_settings
        return init_settings, env_settings


def load(**arguments: Any) -> Settings:
    """The settings now; `arguments` that are None do not count. Raises SettingsError."""
    given = {key: value for key, value in arguments.items() if value is not None}
    path, written = _read_file()
    try:
        settings = Settings(**given)
    except ValidationError as error:
        raise SettingsError(_explain(error, "argument or environment")) from None
    missing = {key: value for key, value in written.items() if key not in settings.model_fields_set}
    try:
        return Settings(**missing, **settings.model_dump(include=settings.model_fields_set))
    except ValidationError as error:
        raise SettingsError(_explain(error, str(path))) from None


def _read_file() -> tuple[Path | None, dict[str, Any]]:
    for folder in (Path.cwd(), platformdirs.user_config_path("roundoff")):
        path = folder / FILE_NAME
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            continue
        try:
            written = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{path} is not valid TOML: {error}") from None
        _refuse_unknown(path, written)
        return path, {key: value for key, value in written.items() if key not in SERVER_KEYS}
    return None, {}


def _refuse_unknown(path: Path, written: dict[str, Any]) -> None:
    known = {*Settings.model_fields, *SERVER_KEYS}
    for key in written:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise SettingsError(f"{path} has the unknown setting {key!r}: {hint}")


def _explain(error: ValidationError, place: str) -> str:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown setting {name!r} ({place}): known are {', '.join(sorted(Settings.model_fields))}"
    shown = "…" if name == "token" else repr(first["input"])
    return f"setting {name} = {shown} ({place}): {first['msg'].removeprefix('Value error, ')}"
