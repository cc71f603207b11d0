"""A Ray cluster on this machine that serves one model: started, run, taken down. Call from one thread."""

from __future__ import annotations

import contextlib
import logging
import os

import ray
from ray import serve

from actors.app import build
from actors.placement import NAMESPACE, ensure_engine, remove_engine
from services.config import Settings
from services.errors import SettingsError

OBJECT_STORE = 150 << 20  # bytes; messages are small and go by value

log = logging.getLogger(__name__)


def start(settings: Settings) -> None:
    """Start Ray here and begin to load the engines; they load while Serve starts."""
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)  # what they say of a normal start is not for users
    ray.init(
        address="local",
        num_cpus=max(os.cpu_count() or 1, settings.engines),
        include_dashboard=False,
        object_store_memory=OBJECT_STORE,
        log_to_driver=False,
        logging_level=logging.ERROR,
        namespace=NAMESPACE,
    )
    if settings.device == "cuda" and not ray.cluster_resources().get("GPU"):
        raise SettingsError("device=cuda: this machine has no CUDA device; use device=cpu or auto")
    for index in range(settings.engines):
        ensure_engine(settings, index)


def deploy(settings: Settings) -> None:
    """Start Serve on the address of the settings and deploy gateway and scheduler. Returns when they run."""
    serve.start(http_options={"host": settings.host, "port": settings.port})
    serve.run(build(settings.model_dump(mode="json")), name="orca", route_prefix="/", blocking=False)


def stop(settings: Settings) -> None:
    """Drain and end Serve, end the engines, end Ray: nothing is left running."""
    if not ray.is_initialized():
        return
    with contextlib.suppress(Exception):  # a cluster that broke cannot drain; it must end all the same
        serve.shutdown()
    for index in range(settings.engines):
        with contextlib.suppress(Exception):
            remove_engine(index)
    ray.shutdown()
