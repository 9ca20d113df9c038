"""From everything that can say something about a run to one `Config`.

Precedence, for each key by itself: arguments, then `TRACKER_BRIDGE_*` environment variables (`_environ` lists them),
then the file (or mapping, dataclass, DictConfig), then the default. The list of backends is one key: the highest source
that lists backends decides which there are, while the options of each are still merged key by key. Tags and params of
all sources are united. A `Config` given as the source has been through this already, so that only arguments change it.

Where no source is given: the file named by `TRACKER_BRIDGE_CONFIG`, else `tracker_bridge.yaml`, `.yml` or `.toml` in
the working directory, else `[tool.tracker_bridge]` of its pyproject.toml, else the embedded default: TensorBoard.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tracker_bridge import registry
from tracker_bridge.config._convert import convert, resolve
from tracker_bridge.config._environ import environment_layer
from tracker_bridge.config._layers import TEXTS, Layer, Leaf, Tree, layer_of, overlay
from tracker_bridge.config._references import check_references
from tracker_bridge.config._secrets import HIDDEN, redact, scrub, secrets_in
from tracker_bridge.config._source import read_source
from tracker_bridge.config._text import KeyPath, fold, found, key_text, unknown
from tracker_bridge.config._types import (
    BackendConfig,
    Config,
    DeliveryConfig,
    GradientsConfig,
    QueueConfig,
    Ranks,
    RouteConfig,
)
from tracker_bridge.config._units import check_pattern, parse_duration, parse_order, parse_size
from tracker_bridge.errors import AdapterLoadError, ConfigError
from tracker_bridge.health import RULES, HealthConfig

DEFAULT_BACKENDS = ("tensorboard",)
DEFAULT_QUEUE_DIR = "tracker_bridge_runs"
_ARGUMENTS = "the arguments"
_MANIFEST = "run.json"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_READERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("queue", "max_disk"): parse_size,
    ("delivery", "close_timeout"): parse_duration,
    ("gradients", "norm_type"): parse_order,
}
_PATTERNS = ("include", "exclude")
_QUEUE_VARIABLES = ("tracker_bridge_dir", "tracker_bridge_queue__dir")
StructT = TypeVar("StructT", bound=msgspec.Struct)


def load_config(
    source: Any = None,
    *,
    project: str | None = None,
    experiment: str | None = None,
    name: str | None = None,
    run_id: str | None = None,
    resume: bool | None = None,
    tags: Any = None,
    params: Mapping[str, Any] | None = None,
    backends: Any = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 (the name that `init` has)
    environ: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Config:
    """The configuration that `source` and the arguments make, checked.

    Args:
        source: The path of a YAML, TOML or JSON file, a mapping, a dataclass or struct, an OmegaConf `DictConfig`, a
            `Config`, or None (see the module's description for what is looked for).
        project: And each further argument up to `params`: the key of that name. None leaves it to the other sources.
        experiment: See `project`.
        name: See `project`.
        run_id: See `project`.
        resume: See `project`.
        tags: One text, a list of texts, or a mapping from tag to value or None.
        params: Nested plain values.
        backends: A name, a list of names, `BackendConfig`s or one-key mappings, or a mapping from name to options.
        dir: `queue.dir`.
        environ: Instead of `os.environ`.
        cwd: Instead of the working directory.

    Raises:
        ConfigError: One error that names the source, the key, what was found, what is expected and, where there is
            one, the nearest valid word or the command that installs what is missing.
    """
    environ = os.environ if environ is None else environ
    cwd = Path.cwd() if cwd is None else Path(cwd).absolute()
    argument_tree = {
        "project": project,
        "experiment": experiment,
        "name": name,
        "run_id": run_id,
        "resume": resume,
        "tags": tags or None,
        "params": params or None,
        "backends": backends,
        "queue": None if dir is None else {"dir": dir},
    }
    arguments = layer_of(argument_tree, _ARGUMENTS, interpolated=False)
    if isinstance(source, Config):
        base = _layer_of_config(source)
        changed = _build([base, arguments], environ, source.cwd, source.origin)
        same = [path for path in source.references if _value_at(changed, path) == _value_at(source, path)]
        return msgspec.structs.replace(changed, references={path: source.references[path] for path in same})
    document = read_source(source, cwd, environ)
    base = layer_of(document.tree, document.origin, interpolated=True)
    check_references(base)
    environment = _environment(environ, base, arguments)
    return _build([base, environment, arguments], environ, cwd, document.origin)


def locate_queue(
    source: Any = None, *, environ: Mapping[str, str] | None = None, cwd: str | os.PathLike[str] | None = None
) -> Path:
    """`queue.dir` by the rules of `load_config`, whatever the rest of the configuration holds.

    Commands look for runs with it also where a tracker of the configuration is not installed. Raises `ConfigError`.
    """
    environ = os.environ if environ is None else environ
    cwd = Path.cwd() if cwd is None else Path(cwd).absolute()
    document = read_source(source, cwd, environ)
    said = document.tree.get("queue")
    base = layer_of({"queue": said}, document.origin, interpolated=True)
    check_references(base)
    variables = {name: value for name, value in environ.items() if fold(name) in _QUEUE_VARIABLES}
    environment = environment_layer(variables, (), (), lambda _: ())
    node = overlay([base, environment]).get("queue", {})
    leaf = node.get("dir") if isinstance(node, dict) else None
    if leaf is None:
        return cwd / DEFAULT_QUEUE_DIR
    said_dir: Path = convert(resolve(leaf, environ, ("queue", "dir"), {}), Path)
    return cwd / said_dir


def restore(
    redacted: Mapping[str, Any], environ: Mapping[str, str] | None = None, *, only: Collection[str] | None = None
) -> Config:
    """The configuration that `redact` wrote, with its references resolved again, for delivering a run later.

    `TRACKER_BRIDGE_<BACKEND>__<KEY>` variables are laid over it; other variables and files have no say. `only`: the
    backends to restore (None: all), so that a secret missing for one does not stop the others.

    Raises:
        ConfigError: A secret that was not written, or a variable that is not set, naming backend, key and remedy.
    """
    environ = os.environ if environ is None else environ
    tree = dict(redacted)
    cwd = Path(tree.pop("cwd", "/"))
    origin = tree.pop("origin", _MANIFEST)
    # Only the backends hold references: what concerns the run itself was written as it was.
    base = layer_of({"backends": tree.pop("backends", {})}, _MANIFEST, interpolated=True)
    about_run = layer_of(tree, _MANIFEST, interpolated=False)
    environment = _environment(environ, base)
    options = {path: leaf for path, leaf in environment.values.items() if path[0] == "backends"}
    wanted = tuple(name for name in base.backends or () if only is None or name in only)
    chosen = Layer({}, wanted)
    return _build(
        [about_run, base, dataclasses.replace(environment, values=options, backends=None, present=frozenset()), chosen],
        environ,
        cwd,
        origin,
    )


def secret_environ(config: Config) -> dict[str, str]:
    """`TRACKER_BRIDGE_<BACKEND>__<KEY>` variables for the secrets that `redact` takes out for good.

    A process that gets them in its environment can `restore` the configuration whole.
    """
    hidden = redact(config)["backends"]
    variables: dict[str, str] = {}
    for backend in config.backends:
        for option, value in backend.options.items():
            if _is_hidden(hidden[backend.name][option]):
                text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                variables[_option_variable(backend.name, option)] = text
    return variables


def _option_variable(backend: str, option: str) -> str:
    return f"TRACKER_BRIDGE_{fold(backend)}__{fold(option)}".upper()


def _environment(environ: Mapping[str, str], *others: Layer) -> Layer:
    kinds = {
        path[1]: str(leaf.value)
        for layer in others
        for path, leaf in layer.values.items()
        if path[0] == "backends" and path[2] == "adapter"
    }

    def option_names(name: str) -> tuple[str, ...]:
        try:
            return registry.adapter_class(kinds.get(name, name)).options_type.__struct_fields__
        except AdapterLoadError:
            return ()

    configured = [name for layer in others for name in layer.backends or ()]
    return environment_layer(environ, configured, registry.known_kinds(), option_names)


def _layer_of_config(config: Config) -> Layer:
    tree = {
        **{key: getattr(config, key) for key in (*TEXTS, "resume", "ranks", "tags", "params", "backends", "gradients")},
        "queue": config.queue,
        "delivery": config.delivery,
        "health": config.health,
    }
    return layer_of(tree, "the given Config", interpolated=False)


def _value_at(config: Config, path: KeyPath) -> Any:
    """The value at a key path, None if there is none."""
    value: Any = config
    for part in path:
        if isinstance(value, tuple) and value and isinstance(value[0], BackendConfig):
            value = {backend.name: {**backend.options, "route": backend.route} for backend in value}.get(part)
        elif isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, (list, tuple)):
            value = value[int(part)] if part.isdecimal() and int(part) < len(value) else None
        else:
            value = getattr(value, part, None)
    return value


def _build(layers: list[Layer], environ: Mapping[str, str], cwd: Path, origin: str) -> Config:
    tree = overlay(layers)
    present = frozenset().union(*(layer.present for layer in layers))
    names = next((layer.backends for layer in reversed(layers) if layer.backends is not None), DEFAULT_BACKENDS)
    references: dict[KeyPath, str] = {}

    def leaf_at(*path: str) -> Leaf | None:
        node: Tree | Leaf | None = tree
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        return None if node is None else resolve(node, environ, path, references)

    def section(kind: type[StructT], *path: str, given: Mapping[str, Any] | None = None) -> StructT:
        values = dict(given or {})
        for field in msgspec.structs.fields(kind):
            leaf = leaf_at(*path, field.name)
            if leaf is not None:
                values[field.name] = _section_value(path, field, leaf)
        return kind(**values)

    def backend(name: str) -> BackendConfig:
        declared = leaf_at("backends", name, "adapter")
        kind = name if declared is None else convert(declared, str)
        cls = _adapter(name, kind, declared, layers, origin)
        node = tree.get("backends", {})
        entry = node.get(name, {}) if isinstance(node, dict) else {}
        keys = [key for key in (entry if isinstance(entry, dict) else {}) if key not in ("adapter", "route")]
        leaves = {key: leaf_at("backends", name, key) for key in keys}
        options = _options(name, kind, cls.options_type, {k: leaf for k, leaf in leaves.items() if leaf}, origin)
        return BackendConfig(
            name=name, adapter=kind, options=options, route=section(RouteConfig, "backends", name, "route")
        )

    texts = {key: _text(key, leaf_at(key)) for key in TEXTS}
    resume = leaf_at("resume")
    ranks = leaf_at("ranks")
    tags = leaf_at("tags")
    params = leaf_at("params")
    queue = section(QueueConfig, "queue", given={"dir": DEFAULT_QUEUE_DIR})
    return Config(
        **texts,
        resume=False if resume is None else convert(resume, bool),
        ranks="first" if ranks is None else convert(ranks, Ranks),
        tags={} if tags is None else tags.value,
        params={} if params is None else params.value,
        backends=tuple(backend(name) for name in names),
        health=_health(section(HealthConfig, "health"), origin),
        gradients=section(GradientsConfig, "gradients") if "gradients" in present else None,
        queue=msgspec.structs.replace(_queue(queue, origin), dir=cwd / Path(queue.dir).expanduser()),
        delivery=section(DeliveryConfig, "delivery"),
        cwd=cwd,
        origin=origin,
        references={path: text for path, text in references.items() if path[0] != "params"},
    )


SMALLEST_DISK = 64 * 1024
"""Below it a journal cannot be cut into segments."""


def _queue(queue: QueueConfig, origin: str) -> QueueConfig:
    if queue.max_disk < SMALLEST_DISK:
        problem = f"found {queue.max_disk} bytes, expected at least 64KiB (2GiB is the default)"
        raise ConfigError(problem, origin=origin, key="queue.max_disk")
    return queue


def _health(health: HealthConfig, origin: str) -> HealthConfig:
    for rule in health.disabled:
        if rule not in RULES:
            problem = unknown(f"no rule is called {rule!r}", rule, RULES, "Rules")
            raise ConfigError(problem, origin=origin, key="health.disabled")
    return health


def _text(key: str, leaf: Leaf | None) -> str | None:
    if leaf is None:
        return None
    value: str = convert(leaf, str)
    if not value.strip():
        raise leaf.error(f"found {found(value)}, expected text that is not empty")
    if key == "run_id" and not _RUN_ID.fullmatch(value):
        raise leaf.error(
            f"found {found(value)}, expected up to 128 letters, digits, '-', '_' and '.', a letter or digit first"
        )
    return value


def _section_value(path: KeyPath, field: msgspec.structs.FieldInfo, leaf: Leaf) -> Any:
    reader = _READERS.get((path[0], field.name))
    if reader is not None:
        value = leaf.value
        if leaf.untyped and isinstance(value, str):
            value = value.strip()
        try:
            return reader(value)
        except ValueError as error:
            raise leaf.error(f"found {found(leaf.value)}, expected {error}") from None
    if isinstance(leaf.value, str) and not leaf.untyped and field.type == tuple[str, ...]:
        leaf = dataclasses.replace(leaf, value=[leaf.value])
    value = convert(leaf, field.type)
    if field.name == "dir" and not str(value).strip(". "):
        value = Path(value)
    if field.name in _PATTERNS:
        for pattern in value:
            try:
                check_pattern(pattern)
            except ValueError as error:
                raise leaf.error(f"found {found(pattern)}, expected {error}") from None
    return value


def _adapter(name: str, kind: str, declared: Leaf | None, layers: list[Layer], origin: str) -> Any:
    where = _origin_of_list(layers, origin)
    key = key_text(("backends", name)) if declared is None else declared.key
    if declared is not None:
        where = declared.origin
    if kind not in registry.known_kinds():
        problem = registry.unknown_kind(kind)
        if declared is None:
            problem += ". A backend with a name of its own says what it is with adapter: <kind>"
        raise ConfigError(problem, origin=where, key=key)
    try:
        cls = registry.adapter_class(kind)
    except AdapterLoadError as error:
        raise ConfigError(str(error), origin=where, key=key) from None
    missing = registry.missing_requirements(cls)
    if missing:
        modules = " and ".join(repr(requirement.module) for requirement in missing)
        install = " ".join(f'"{wanted}"' for wanted in dict.fromkeys(requirement.install for requirement in missing))
        verb = "is" if len(missing) == 1 else "are"
        raise ConfigError(
            f"the {kind} adapter needs {modules}, which {verb} not installed; install with: pip install {install}",
            origin=where,
            key=key_text(("backends", name)),
        )
    return cls


def _origin_of_list(layers: list[Layer], origin: str) -> str:
    return next((layer.listed_by for layer in reversed(layers) if layer.backends is not None), origin) or origin


def _options(name: str, kind: str, options_type: type[Any], leaves: Mapping[str, Leaf], origin: str) -> dict[str, Any]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(options_type)}
    options: dict[str, Any] = {}
    for key, leaf in leaves.items():
        if key not in fields:
            raise leaf.error(unknown(f"unknown option of the {kind} adapter", key, fields, "Valid options"))
        if _is_hidden(leaf.value):
            raise leaf.error(
                f"backend {name!r} needs this secret, which is not kept in {leaf.origin}; "
                f"set the environment variable {_option_variable(name, key)}"
            )
        value = convert(leaf, fields[key].type)
        options[key] = msgspec.to_builtins(value, str_keys=False, enc_hook=_keep) if leaf.untyped else leaf.value
    for key, field in fields.items():
        if field.required and key not in options:
            raise ConfigError(
                f"the {kind} adapter needs this option", origin=origin, key=key_text(("backends", name, key))
            )
    try:
        msgspec.convert(options, type=options_type)
    except msgspec.ValidationError as error:
        problem = scrub(str(error), secrets_in(options))
        raise ConfigError(problem, origin=origin, key=key_text(("backends", name))) from None
    return options


def _is_hidden(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_hidden(item) for item in value.values())
    if isinstance(value, list):
        return any(_is_hidden(item) for item in value)
    return isinstance(value, str) and HIDDEN in value


def _keep(value: Any) -> Any:
    return str(value)
