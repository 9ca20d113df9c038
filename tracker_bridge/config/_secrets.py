"""What counts as a secret, and how texts and configurations are freed of them.

Secrets are: values under a key named like one (`api_key`, `api_token`, `password`, ...), the user-info of a URL, and
the values of environment variables named like one. Text made from `${env:NAME}` goes back to that reference.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

import msgspec

from tracker_bridge.config._text import KeyPath
from tracker_bridge.config._types import Config

HIDDEN = "<secret>"
"""Stands where a secret was."""

_SECRET_KEY = re.compile(
    r"(?:^|[^A-Za-z0-9])(?:api_?key|api_?token|(?:[a-z0-9]+_)*token|password|passwd|passphrase|pwd|secret|"
    r"(?:[a-z0-9]+_)*(?:secret|access|private)_?key|credentials?|authorization|cookie)$",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(
    r"(?:API_?KEY|TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|SECRET_KEY|ACCESS_KEY|CREDENTIALS?)$"
)
_USER_INFO = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<info>[^\s/?#@'\"]+(?:@[^\s/?#@'\"]+)*)@")
_QUERY = re.compile(
    r"(?P<key>[?&](?:[A-Za-z0-9_-]*(?:key|token|secret|password|signature|credential))=)(?P<value>[^&\s#'\"]+)",
    re.IGNORECASE,
)
_ONLY_REFERENCES = re.compile(r"(?:\$\{env:[A-Za-z_][A-Za-z0-9_]*\}:?)+")
_CALL = re.compile(r"\$\{(?=[A-Za-z_][\w.-]*:)")
# What `restore` would take for a reference, or for one that is escaped.
_REFERENCE_DEFAULT = re.compile(r"(\$\{env:[A-Za-z_][A-Za-z0-9_]*):[^}]*\}")

# A shorter value would turn up by chance in texts that have nothing to do with it.
_SHORTEST = 4
_SHORTEST_OF_ENVIRONMENT = 8


def is_secret_key(key: str) -> bool:
    """Whether a key (or a key path, by its last part) names a secret."""
    return _SECRET_KEY.search(key.replace("-", "_")) is not None


def hide_in_urls(text: str) -> str:
    """`https://user:password@host/?token=abc` as `https://<secret>@host/?token=<secret>`; references inside stay."""
    if "://" not in text:
        return text
    text = _USER_INFO.sub(lambda match: f"{match['scheme']}{_hidden_part(match['info'])}@", text)
    return _QUERY.sub(lambda match: f"{match['key']}{_hidden_part(match['value'])}", text)


def _hidden_part(text: str) -> str:
    return text if _ONLY_REFERENCES.fullmatch(text) else HIDDEN


def secret_values(config: Config, environ: Mapping[str, str]) -> frozenset[str]:
    """Every text that must not be written: secrets of the configuration and of the environment, and their encodings."""
    plain: set[str] = set()
    for backend in config.backends:
        plain.update(secrets_in(backend.options))
    for path, text in config.references.items():
        for name in _variables(text):
            if is_secret_key(name) or is_secret_key(path[-1]):
                plain.add(environ.get(name, ""))
    plain = {value for value in plain if len(value) >= _SHORTEST}
    for name, value in environ.items():
        if _SECRET_VARIABLE.search(name.upper()) and len(value) >= _SHORTEST_OF_ENVIRONMENT:
            plain.add(value)
        plain.update(part for part in _in_urls(value) if len(part) >= _SHORTEST)
    return frozenset(form for value in plain for form in _forms(value))


def scrub(text: str, secrets: Iterable[str]) -> str:
    """The text with each of `secrets` and every URL's user-info replaced."""
    for secret in sorted(secrets, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, HIDDEN)
    return hide_in_urls(text)


def scrub_data(value: Any, secrets: Iterable[str]) -> Any:
    """`scrub` for every text in nested plain data, keys included."""
    if isinstance(value, str):
        return scrub(value, secrets)
    if isinstance(value, Mapping):
        return {scrub_data(key, secrets): scrub_data(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub_data(item, secrets) for item in value]
    return value


def hide_secrets(params: Mapping[str, Any], secrets: Iterable[str]) -> dict[str, Any]:
    """Params without secrets: neither known ones anywhere, nor anything under a key that is named like one."""
    hidden: dict[str, Any] = _hidden(scrub_data(params, secrets), ("params",), {})
    return hidden


def redact(config: Config) -> dict[str, Any]:
    """The configuration for `run.json`: JSON-able, without secrets, in the shape of a configuration file.

    `params` are left out (the journal holds them). In the backends, values made from `${env:...}` are the reference
    again; elsewhere they are written as they were at the time, unless the variable is named like a secret. `cwd` and
    `origin` are added; `restore` reads the result.
    """
    outside = {path: HIDDEN for path, text in config.references.items() if any(map(is_secret_key, _variables(text)))}
    document: dict[str, Any] = {
        name: _hidden(getattr(config, name), (name,), outside)
        for name in ("project", "experiment", "name", "run_id", "resume", "ranks", "tags")
    }
    document["backends"] = {
        backend.name: {
            "adapter": backend.adapter,
            **_hidden(backend.options, ("backends", backend.name), config.references),
            "route": _hidden(_set_only(backend.route), ("backends", backend.name, "route"), config.references),
        }
        for backend in config.backends
    }
    if config.gradients is not None:
        document["gradients"] = _hidden(_set_only(config.gradients), ("gradients",), outside)
    document["queue"] = {**msgspec.structs.asdict(config.queue), "dir": str(config.queue.dir)}
    document["delivery"] = msgspec.structs.asdict(config.delivery)
    document["health"] = _hidden(_set_only(config.health), ("health",), outside)
    document["cwd"] = str(config.cwd)
    document["origin"] = config.origin
    return document


def _variables(text: str) -> list[str]:
    return re.findall(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)", text)


def _set_only(section: msgspec.Struct) -> dict[str, Any]:
    return {
        field.name: getattr(section, field.name)
        for field in msgspec.structs.fields(section)
        if getattr(section, field.name) not in (field.default, {})
    }


def _hidden(value: Any, path: KeyPath, references: Mapping[KeyPath, str], *, secret: bool = False) -> Any:
    reference = references.get(path)
    if reference is not None:
        shown = _REFERENCE_DEFAULT.sub(r"\1}", reference) if secret else reference
        return HIDDEN if secret and not _ONLY_REFERENCES.fullmatch(shown) else hide_in_urls(shown)
    if isinstance(value, Mapping):
        return {
            str(key): _hidden(item, (*path, str(key)), references, secret=secret or is_secret_key(str(key)))
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [_hidden(item, (*path, str(at)), references, secret=secret) for at, item in enumerate(items)]
    if value is None or isinstance(value, bool):
        return value
    if secret:
        return HIDDEN
    if isinstance(value, str):
        return hide_in_urls(_CALL.sub("$\\g<0>", value) if path[0] == "backends" else value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value if isinstance(value, (int, float)) else f"<{type(value).__qualname__} object>"


def secrets_in(value: Any, *, secret: bool = False) -> Iterator[str]:
    """The secrets in nested options, as they are."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from secrets_in(item, secret=secret or is_secret_key(str(key)))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from secrets_in(item, secret=secret)
    elif isinstance(value, (str, int)) and not isinstance(value, bool):
        text = str(value)
        if secret:
            yield text
        yield from _in_urls(text)


def _in_urls(text: str) -> Iterator[str]:
    # A user's name with a password is no secret, but a lone user-info (https://token@host) is one.
    if "://" not in text:
        return
    for match in _USER_INFO.finditer(text):
        user, colon, password = match["info"].partition(":")
        yield password if colon else user
        yield unquote(password if colon else user)
        if colon:
            yield match["info"]
            yield base64.b64encode(unquote(match["info"]).encode()).decode()
    for match in _QUERY.finditer(text):
        yield match["value"]
        yield unquote(match["value"])


def _forms(value: str) -> Iterator[str]:
    yield value
    yield quote(value, safe="")
    yield quote_plus(value)
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
