"""`attach`: which kind of object it is, and the run that delivers to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from tracker_bridge.adapter import Adapter
from tracker_bridge.attaching._held import hold
from tracker_bridge.config import BackendConfig, RouteConfig, load_config
from tracker_bridge.errors import UsageError
from tracker_bridge.run import Run
from tracker_bridge.run._init import begin
from tracker_bridge.run._plain import plain_params, plain_tags

__all__ = ["attach"]

_WRITERS = ("torch.utils.tensorboard", "tensorboardX")


def attach(
    *existing: Any,
    config: Any = None,
    project: str | None = None,
    experiment: str | None = None,
    name: str | None = None,
    run_id: str | None = None,
    tags: Any = (),
    params: Any = None,
    backends: Any = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 - as in `init`
    resume: bool = False,
    route: Mapping[str, Any] | None = None,
) -> Run:
    """Begin a run that delivers to live objects of the script: `attach(wandb.run)`.

    The objects' own rows and steps are not disturbed, and they stay open: close the returned run before the script
    closes them (`with attach(writer) as run:`), for what is not delivered by then is dropped, counted. Delivery is on a
    thread of this process. An MLflow run is logged to by its id, and may be ended before.

    Args:
        existing: `wandb.Run`s, `SummaryWriter`s of torch or tensorboardX, MLflow runs, `neptune_scale.Run`s.
        config: As in `init`. Its backends are delivered to as well; without it only what `backends` says.
        project: As in `init`, and so are the arguments up to `resume`.
        experiment: See `init`.
        name: See `init`.
        run_id: See `init`.
        tags: See `init`.
        params: See `init`. Those that the object has with another value are left as they are.
        backends: See `init`: further backends.
        dir: See `init`.
        resume: See `init`.
        route: What of the run goes to the objects, with the keys of a backend's route (`{"prefix": "bridge/"}`).

    Raises:
        UsageError: `existing` is empty, or holds something else.
        ConfigError: The configuration cannot be used.
    """
    if not existing:
        raise UsageError("attach: pass the live object, such as wandb.run or a SummaryWriter")
    settings = load_config(
        config,
        project=project,
        experiment=experiment,
        name=name,
        run_id=run_id,
        tags=plain_tags(tags),
        params=plain_params(params) if params is not None else {},
        backends=backends if backends is not None or config is not None else (),
        dir=dir,
        resume=resume,
    )
    try:
        routed = msgspec.convert(dict(route or {}), RouteConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"attach: route: {error}") from None
    taken = {backend.name for backend in settings.backends}
    adapters: dict[str, Adapter[Any]] = {}
    held: list[BackendConfig] = []
    for live in existing:
        kind, adapter, options = _understood(live)
        free = _free_name(kind, taken)
        held.append(BackendConfig(name=free, adapter=_kind(kind, adapter), options=options, route=routed))
        if adapter is not None:
            adapters[free] = adapter
    run = begin(
        msgspec.structs.replace(
            settings,
            backends=(*settings.backends, *held),
            delivery=msgspec.structs.replace(settings.delivery, mode="thread"),
        ),
        adapters,
    )
    hold(run, [_identity(live) for live in existing])
    return run


def _kind(kind: str, adapter: Any) -> str:
    """What the manifest calls it. Once this process is gone, the name says why nothing can be delivered there."""
    return kind if adapter is None else f"live {adapter.tracker} of the script"


def _understood(live: Any) -> tuple[str, Adapter[Any] | None, dict[str, Any]]:
    """The kind of tracker, and the adapter around the object, or the options of the ordinary one for it."""
    homes = [f"{kind.__module__}.{kind.__name__}" for kind in type(live).__mro__]
    if any(home.startswith(_WRITERS) and home.endswith(".SummaryWriter") for home in homes):
        from tracker_bridge.attaching._tensorboard import LiveWriter

        return "tensorboard", LiveWriter(live), {}
    if any(home.startswith("wandb.") and home.endswith(".Run") for home in homes):
        from tracker_bridge.attaching._wandb import LiveWandb

        return "wandb", LiveWandb(live), {}
    if any(home.startswith("neptune_scale.") and home.endswith(".Run") for home in homes):
        from tracker_bridge.attaching._neptune import LiveNeptune

        return "neptune", LiveNeptune(live), {}
    if any(home.startswith("mlflow.") and home.endswith(("Run", "ActiveRun")) for home in homes):
        from importlib import import_module

        # Asked for on the script's thread: MLflow keeps what is active for each thread apart.
        uri = str(import_module("mlflow").get_tracking_uri())
        return "mlflow", None, {"tracking_uri": uri, "run_id": str(live.info.run_id)}
    shim = next((home for home in homes if home.startswith("tracker_bridge.compat.")), None)
    if shim is not None:
        raise UsageError(f"attach: {type(live).__name__} is the bridge's stand-in ({shim}), which has a run already")
    if isinstance(live, type):
        raise UsageError(f"attach: pass the object, not the class {live.__name__}")
    raise UsageError(
        f"attach: a {type(live).__name__} is none of wandb.Run, SummaryWriter, MLflow run and neptune_scale.Run"
        + (" (wandb.run is None before wandb.init)" if live is None else "")
    )


def _identity(live: Any) -> Any:
    info: Any = getattr(live, "info", None)
    return info.run_id if hasattr(info, "run_id") else id(live)


def _free_name(kind: str, taken: set[str]) -> str:
    name, count = kind, 2
    while name in taken:
        name, count = f"{kind}-{count}", count + 1
    taken.add(name)
    return name
