"""The compose file is one: by the Compose specification's schema, and with what the servers need.

`compose_spec.json` is the schema of docker-compose 1.29.2 (Apache-2.0).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from roundoff_server.settings import ServerSettings

ROOT = Path(__file__).parent.parent.parent
GIVEN = {"ROUNDOFF_ADMIN_TOKEN": "long enough", "POSTGRES_PASSWORD": "secret"}


def filled(text: str) -> str:
    """The text with its variables replaced as `docker compose` does it."""

    def value(found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        return GIVEN.get(name) or ("" if default is None else default)

    return re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*)|:\?[^}]*)?\}", value, text)


@pytest.fixture
def compose() -> Any:
    return yaml.safe_load(filled((ROOT / "docker-compose.yml").read_text(encoding="utf-8")))


def test_it_is_by_the_schema(compose: Any) -> None:
    schema = json.loads((Path(__file__).parent / "compose_spec.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft201909Validator(schema)
    validator.validate(compose)
    broken = compose | {"services": compose["services"] | {"server": {"replicas": 2}}}
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(broken)


def test_the_servers_are_several_and_reached_by_the_proxy_alone(compose: Any) -> None:
    services = compose["services"]
    assert services["server"]["deploy"]["replicas"] >= 2
    assert [name for name, service in services.items() if "ports" in service] == ["proxy"]
    assert services["proxy"]["ports"] == ["127.0.0.1:8765:8765"]
    assert set(compose["volumes"]) == {"caddy", "postgres"}


def test_its_settings_are_settings(compose: Any) -> None:
    environment = compose["services"]["server"]["environment"]
    known = {f"ROUNDOFF_{name.upper()}" for name in ServerSettings.model_fields}
    assert set(environment) <= known
    ServerSettings(**{name.removeprefix("ROUNDOFF_").lower(): value for name, value in environment.items()})


def test_what_it_mounts_and_names_is_there(compose: Any) -> None:
    mounted = [volume.split(":")[0] for volume in compose["services"]["proxy"]["volumes"]]
    assert all((ROOT / path).exists() for path in mounted if path.startswith("."))
    caddy = (ROOT / "deploy" / "Caddyfile").read_text(encoding="utf-8")
    (server,) = re.findall(r"^\s*name (\w+)$", caddy, re.MULTILINE)
    (port,) = re.findall(r"^\s*port (\d+)$", caddy, re.MULTILINE)
    assert port in compose["services"][server]["expose"]
    assert f"EXPOSE {port}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
