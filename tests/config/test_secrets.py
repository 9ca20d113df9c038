"""Secrets: what is written of a configuration, what is scrubbed from texts, and how a run is restored."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from tracker_bridge.config import (
    HIDDEN,
    Config,
    ConfigError,
    redact,
    restore,
    scrub,
    scrub_data,
    secret_environ,
    secret_values,
)

Load = Callable[..., Config]

ENVIRON = {"KEY_FROM_ENV": "kkkk-from-env", "HOST": "tracker.example", "USER_TOKEN": "tttt-from-env", "WHO": "me"}
SOURCE: dict[str, Any] = {
    "project": "for ${env:WHO}",
    "name": "shh ${env:USER_TOKEN}",
    "tags": {"t": "${env:WHO}"},
    "backends": {
        "alpha": {
            "api_key": "literal-key-1",
            "tracking_uri": "https://user:pass-word-2@host:99/x?token=query-3&a=b",
            "settings": {"headers": {"Authorization": "Bearer header-4"}, "credentials": {"any": "below-5"}, "x": 1},
            "labels": ["https://lone-token-6@host/", "plain"],
        },
        "prod": {
            "adapter": "alpha",
            "api_key": "${env:KEY_FROM_ENV}",
            "tracking_uri": "http://${env:USER_TOKEN}@${env:HOST}/",
            "port": "${env:PORT:5000}",
            "settings": {"password": "${env:UNSET:default-7}", "literal": "$${env:HOST}"},
        },
    },
    "gradients": {"norm_type": math.inf, "include": "a.*"},
}
SECRETS = [
    "literal-key-1",
    "pass-word-2",
    "query-3",
    "header-4",
    "below-5",
    "lone-token-6",
    "default-7",
    "kkkk-from-env",
    "tttt-from-env",
]


@pytest.fixture
def config(load: Load) -> Config:
    return load(SOURCE, environ=ENVIRON, params={"p": 1})


def test_the_written_form_holds_no_secret_and_is_json(config: Config) -> None:
    """`redact` leaves no secret whatever its form, keeps references and everything else, and is plain JSON."""
    document = redact(config)
    text = json.dumps(document, allow_nan=False)
    assert [secret for secret in SECRETS if secret in text] == []
    assert document["backends"]["alpha"] == {
        "adapter": "alpha",
        "api_key": HIDDEN,
        "tracking_uri": f"https://{HIDDEN}@host:99/x?token={HIDDEN}&a=b",
        "settings": {"headers": {"Authorization": HIDDEN}, "credentials": {"any": HIDDEN}, "x": 1},
        "labels": [f"https://{HIDDEN}@host/", "plain"],
        "route": {},
    }
    assert document["backends"]["prod"] == {
        "adapter": "alpha",
        "api_key": "${env:KEY_FROM_ENV}",
        "tracking_uri": "http://${env:USER_TOKEN}@${env:HOST}/",
        "port": "${env:PORT:5000}",
        "settings": {"password": "${env:UNSET}", "literal": "$${env:HOST}"},
        "route": {},
    }
    assert (document["project"], document["name"], document["tags"]) == ("for me", HIDDEN, {"t": "me"})
    assert "params" not in document


def test_the_original_config_is_untouched(config: Config, load: Load) -> None:
    """Redacting changes nothing in the configuration that the run goes on with."""
    redact(config)
    assert config == load(SOURCE, environ=ENVIRON, params={"p": 1})


def test_secret_values_finds_every_form(config: Config) -> None:
    """Literal secrets, those behind references, in URLs and in the environment are known, also in encoded forms."""
    environ = {
        **ENVIRON,
        "WANDB_API_KEY": "wandb-key-8",
        "HTTPS_PROXY": "http://p:proxy-pass-9@proxy",
        "SHORT_TOKEN": "abc",
    }
    values = secret_values(config, environ)
    assert [
        secret for secret in (*SECRETS, "wandb-key-8", "proxy-pass-9") if not any(secret in v for v in values)
    ] == []
    assert base64.b64encode(b"user:pass-word-2").decode() in values
    assert "abc" not in values
    assert not any(value in ("me", "tracker.example", "5000", "plain", "user") for value in values)


@pytest.mark.parametrize("secret", ["s3cr/et+&=?", 'quo"te\\back', "ünï-cödé-pass"])
def test_secrets_are_scrubbed_in_the_forms_that_texts_have(load: Load, secret: str) -> None:
    """A secret is found as it is, URL-quoted, and inside JSON."""
    from urllib.parse import quote, quote_plus

    secrets = secret_values(load({"backends": {"alpha": {"api_key": secret}}}), {})
    for form in (
        secret,
        quote(secret, safe=""),
        quote_plus(secret),
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
    ):
        assert scrub(f"error: key {form} refused", secrets).replace('"', "") == f"error: key {HIDDEN} refused"


def test_urls_are_scrubbed_without_being_known() -> None:
    """User-info and tokens in any URL of a text go, the rest of the text stays."""
    assert scrub("GET http://u:p@h/a@b failed, see https://h/?api_key=k&x=1#f and me@h", ()) == (
        f"GET http://{HIDDEN}@h/a@b failed, see https://h/?api_key={HIDDEN}&x=1#f and me@h"
    )


def test_longer_secrets_are_replaced_before_their_parts() -> None:
    """A secret that contains another leaves no rest."""
    assert scrub("token abcd-efgh", {"abcd", "abcd-efgh"}) == f"token {HIDDEN}"


def test_nested_data_is_scrubbed(config: Config) -> None:
    """Params that a script logs lose known secrets wherever they stand, and nothing else."""
    data = {"a": ["literal-key-1", 2, None], "literal-key-1": {"b": "x kkkk-from-env"}, "pad_token": "[PAD]"}
    assert scrub_data(data, secret_values(config, ENVIRON)) == {
        "a": [HIDDEN, 2, None],
        HIDDEN: {"b": f"x {HIDDEN}"},
        "pad_token": "[PAD]",
    }


def test_restore_resolves_references_and_given_secrets(config: Config) -> None:
    """What was written, with its variables and the secrets of `secret_environ`, is the configuration again."""
    document = json.loads(json.dumps(redact(config)))
    restored = restore(document, {**ENVIRON, "UNSET": "default-7", **secret_environ(config)})
    assert restored.backends == config.backends
    assert (restored.gradients, restored.queue, restored.delivery) == (config.gradients, config.queue, config.delivery)
    assert (restored.cwd, restored.origin, restored.project) == (config.cwd, config.origin, config.project)


def test_secret_environ_holds_only_what_is_hidden(config: Config) -> None:
    """Values that a reference gives back are not passed on."""
    assert set(secret_environ(config)) == {
        "TRACKER_BRIDGE_ALPHA__API_KEY",
        "TRACKER_BRIDGE_ALPHA__TRACKING_URI",
        "TRACKER_BRIDGE_ALPHA__SETTINGS",
        "TRACKER_BRIDGE_ALPHA__LABELS",
    }


def test_restore_names_a_missing_secret(config: Config) -> None:
    """A literal secret that is not given again is named with its backend, key and variable."""
    with pytest.raises(ConfigError) as caught:
        restore(redact(config), ENVIRON)
    assert str(caught.value) == (
        "run.json: backends.alpha.api_key: backend 'alpha' needs this secret, which is not kept in run.json; "
        "set the environment variable TRACKER_BRIDGE_ALPHA__API_KEY"
    )


def test_restore_names_an_unset_variable(config: Config) -> None:
    """A reference whose variable is gone is named."""
    with pytest.raises(ConfigError) as caught:
        restore(redact(config), {"HOST": "h"}, only=["prod"])
    assert str(caught.value) == (
        "run.json: backends.prod.api_key: the environment variable KEY_FROM_ENV is not set; set it, or give a default "
        "with ${env:KEY_FROM_ENV:default}"
    )


def test_restore_of_one_backend_needs_only_its_secrets(config: Config) -> None:
    """A secret missing for one backend does not stop another."""
    restored = restore(redact(config), {**ENVIRON, "UNSET": "x"}, only=["prod"])
    assert [backend.name for backend in restored.backends] == ["prod"]
    assert restored.backends[0].options["api_key"] == "kkkk-from-env"


def test_restore_listens_to_option_variables_only(config: Config) -> None:
    """The run's own backends are delivered to, whatever list the shell has set since."""
    environ = {
        **ENVIRON,
        **secret_environ(config),
        "UNSET": "x",
        "TRACKER_BRIDGE_BACKENDS": "none",
        "TRACKER_BRIDGE_PROJECT": "other",
        "TRACKER_BRIDGE_PROD__PORT": "7",
    }
    restored = restore(redact(config), environ)
    assert [backend.name for backend in restored.backends] == ["alpha", "prod"]
    assert (restored.project, restored.backends[1].options["port"]) == ("for me", 7)


@pytest.mark.parametrize(
    "text",
    [
        "backends: {alpha: {api_key: sesame-open, port: x}}",
        "backends: {alpha: {api_key: [sesame-open]}}",
        "backends: {alpha: {api_key: {deep: sesame-open}}}",
        "backends: {alpha: {api_kee: sesame-open}}",
        "backends: {alpha: {api_key: sesame-open, api_key: sesame-open}}",
        "backends: {alpha: {api_key: sesame-open, port: 13, tracking_uri: sesame-open}}",
        "backends: {alpha: {port: 'http://sesame-open@h'}}",
        "api_key: sesame-open",
    ],
)
def test_no_error_quotes_a_secret(load: Load, tmp_path: Any, text: str) -> None:
    """Whatever is wrong around a secret, the error text does not contain it."""
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load("c.yaml")
    assert "sesame" not in str(caught.value)
