"""A Ray cluster on this machine that serves one model: started, run, taken down. Call from one thread."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from pathlib import Path

import ray

from actors.engine import engine_settings, layout_of
from actors.environment import RAY_FOLDER
from actors.front_door import drain
from actors.placement import NAMESPACE, check_gpus, ensure_engine, remove_engine
from services.config import Settings
from services.models import resolve

OBJECT_STORE = 150 << 20  # bytes; messages are small and go by value

log = logging.getLogger(__name__)


def start(settings: Settings, folder: Path) -> None:
    """Start Ray here, its files in `folder`. Raises SettingsError for devices that are absent, and for a model that
    cannot be split over ranks as asked for."""
    size = layout_of(settings).size
    if size > 1:
        from services.engine.loading import check_ranks  # torch: seconds
        from services.engine.proof.verdict import proven

        model = resolve(settings.model, settings.cache_dir, log.info)
        check_ranks(model, proven(model, engine_settings(settings)))
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)  # what they say of a normal start is not for users
    ray.init(
        address="local",
        num_cpus=max(os.cpu_count() or 1, settings.engines * size),
        include_dashboard=False,
        object_store_memory=OBJECT_STORE,
        log_to_driver=False,
        logging_level=logging.ERROR,
        namespace=NAMESPACE,
        _temp_dir=str(folder / RAY_FOLDER),  # Ray opens it to everybody; the folder above stays ours alone
    )
    check_gpus(settings, int(ray.cluster_resources().get("GPU", 0)))


def deploy(settings: Settings, folder: Path) -> None:
    """Load the engines and meanwhile start Serve, on the address of the settings, with gateways and schedulers.

    Returns when those run. They find the pool's URL in a file that this user alone can read: the arguments of actors
    are kept by Ray.
    """
    url = folder / "redis-url"
    url.touch(mode=0o600)
    url.write_text(settings.redis_url.get_secret_value())
    for index, rank in itertools.product(range(settings.engines), range(layout_of(settings).size)):
        ensure_engine(settings, index, rank)

    from ray import serve  # more than a second, in which the engines begin to load

    from actors.app import build

    # HAProxy is told `settings.host` by its program; replicas and Serve's own proxy, behind it, take this one
    serve.start(http_options={"host": "127.0.0.1", "port": settings.port})
    values = settings.with_key_hashes() | {"redis_url_file": str(url)}
    del values["redis_url"]
    serve.run(build(values), name="orca", route_prefix="/", blocking=False)


def stop(settings: Settings, folder: Path) -> None:
    """Let nobody in, wait for the answers under way, `drain_timeout` seconds at most; then end Serve, engines, Ray."""
    if not ray.is_initialized():
        return
    drain(folder, settings.drain_timeout)
    with contextlib.suppress(Exception):  # a cluster that broke cannot drain; it must end all the same
        from ray import serve

        serve.shutdown()
    for index in range(settings.engines):
        with contextlib.suppress(Exception):
            remove_engine(index)
    ray.shutdown()
