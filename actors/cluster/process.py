"""The process that holds Ray for `orca serve`: `python -m actors.cluster.process PIPE FOLDER`.

PIPE is an inherited socket. The process receives the settings on it, then the pool's URL and the pinned model as
soon as they are known, reports how far it has come, and starts the spares when it is told that the server is ready. It
goes on when the supervisor is killed: the cluster serves until the next `orca serve` replaces it. SIGTERM drains the
cluster and ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import ray
from pydantic import SecretStr

from actors.cluster.engine_failures import EngineWatch, StartFailures
from actors.cluster.environment import RAY_FOLDER
from actors.engine_build import engine_settings, layout_of
from actors.engine_record import records_in
from actors.front_door import drain, refuse_connections
from actors.placement import ADDED, NAMESPACE, check_gpus, engine_labels, ensure_engine, remove_engine, tag_of_label
from actors.ray_private import keep_gcs, set_replicas, slow_control_loop, use_small_head
from actors.replica import find_model, open_shards
from services.background import daemon_thread, quiet_moment, start_thread
from services.errors import OrcaError
from services.live.frames import END, FRAMES
from services.logs import configure
from services.model_list import ListedModel, ModelList
from services.models import resolve
from services.models.pin import pin_commit
from services.pool.pool import RequestPool
from services.settings.settings import Settings
from services.settings.sources import load

APPLICATION = "orca"  # its name in Serve
POLL = 0.05  # seconds
LOOK_EVERY = 1.0  # seconds between looks whether an engine has failed
OBJECT_STORE = 150 << 20  # bytes; messages are small and are passed by value

log = logging.getLogger(__name__)


class Pipe:
    """JSON values over a socket, one per line."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._socket.set_inheritable(False)  # it must close when this process ends, not when its children do
        self._lines = self._socket.makefile("r")

    def receive(self) -> Any:
        """Return the next value. Ends the program if the supervisor has closed its end: this cluster is not needed."""
        line = self._lines.readline()
        if not line:
            sys.exit("the supervisor is gone")
        return json.loads(line)

    def wait(self) -> None:
        """Wait for the next value, which is dropped, or until the supervisor is gone."""
        self._lines.readline()

    def send(self, **values: Any) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone
            self._socket.sendall(json.dumps(values).encode() + b"\n")

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Send the error that is raised within, and raise it again."""
        try:
            yield
        except Exception as error:
            self.send(error=str(error) if isinstance(error, OrcaError) else repr(error))
            raise


def main() -> None:
    pipe, folder = Pipe(int(sys.argv[1])), Path(sys.argv[2])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stopping = threading.Event()
    with contextlib.suppress(KeyboardInterrupt):
        with pipe.reporting():
            settings = load(**pipe.receive())
            configure(settings, "cluster")
        try:
            with pipe.reporting():  # before Ray is stopped, whose end would otherwise be reported as the cause
                _serve(pipe, settings, folder, stopping)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            stopping.set()
            _stop(settings, folder)


def _serve(pipe: Pipe, settings: Settings, folder: Path, stopping: threading.Event) -> NoReturn:
    """Start the cluster and keep it until a signal ends this process, which then sets `stopping`."""
    _start_ray(settings, folder)
    start_thread(lambda: keep_gcs(stopping), "gcs")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray installs its own handler
    pipe.send(at="ray")
    serve = _start_serve(settings)
    received = pipe.receive()
    names: dict[str, str] = received["models"]
    settings = settings.pinned(lambda name: names.get(name) or pin_commit(name))
    settings = settings.model_copy(update={"redis_url": SecretStr(received["redis_url"]), "durability": "everysec"})
    ready = threading.Event()
    watch = EngineWatch(records_in(folder), folder / RAY_FOLDER / "session_latest" / "logs")
    tags = {each.tag for each in settings.each}
    watching = start_thread(lambda: _watch_engines(pipe, watch, tags, received["was_ready"], ready), "engine-watch")
    try:
        _deploy(pipe, settings, folder, serve)
        pipe.wait()  # until the server is ready
    finally:
        ready.set()
        watching.join(LOOK_EVERY)  # before Ray is stopped
    try:
        with contextlib.suppress(OrcaError):
            asyncio.run(_quiet(settings))
        _add_replicas(settings)
        slow_control_loop()
        while True:
            signal.pause()
    finally:
        refuse_connections(folder)
        asyncio.run(_end_feeds(settings))


def _start_ray(settings: Settings, folder: Path) -> None:
    """Start Ray on this machine, with its files in `folder`.

    Raises SettingsError if a device that the settings name is absent, or if they need the fast path, or a model that
    can be split over the ranks, and this model lacks it.
    """
    for each in settings.each:
        _check_engine(each)
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)  # their messages of a normal start are not for users
    use_small_head()
    ranks = sum(each.most_engines * layout_of(each).size for each in settings.each)
    ranks += ADDED * bool(settings.operator_api_key)
    ray.init(
        address="local",
        num_cpus=max(os.cpu_count() or 1, ranks),
        include_dashboard=False,
        object_store_memory=OBJECT_STORE,
        log_to_driver=False,
        logging_level=logging.ERROR,
        namespace=NAMESPACE,
        _temp_dir=str(folder / RAY_FOLDER),  # Ray makes it readable for everybody; `folder` stays this user's
    )
    check_gpus(settings, int(ray.cluster_resources().get("GPU", 0)))


def _check_engine(settings: Settings) -> None:
    """Raises SettingsError if the settings of a model need what its engines lack."""
    split = layout_of(settings).size > 1
    if split or settings.weights == "int8" or settings.kv_cache_dtype != "auto" or settings.batch_invariant:
        from services.engine.startup.loading import check_settings  # imports torch, which takes seconds
        from services.engine.startup.proof.verdict import proven

        model = resolve(settings.model, settings.cache_dir, log.info)  # without replaced files: its layers are the same
        check_settings(model, proven(model, engine_settings(settings)))


def _start_serve(settings: Settings) -> Future[None]:
    """Start Serve in a thread, on the address of the settings, while the model may still be fetched or converted."""
    from ray import serve

    from actors.app import serve_logs

    # `orca-haproxy` binds `settings.host`; the replicas and Serve's own proxy, which are behind it, bind this address
    address = {"host": "127.0.0.1", "port": settings.port}
    return daemon_thread(serve.start, http_options=address, logging_config=serve_logs(settings))


def _deploy(pipe: Pipe, settings: Settings, folder: Path, starting: Future[None]) -> None:
    """Start the engines, and gateways and schedulers on Serve, which is `starting`. A model that was removed from the
    list while an earlier cluster ran has no engines; how the list differs from the settings is said.

    Returns when a gateway and as many schedulers as engines run. They read the pool's URL from a file that only this
    user can read, since Ray keeps the arguments of actors.
    """
    url = folder / "redis-url"
    url.touch(mode=0o600)
    url.write_text(settings.redis_url.get_secret_value())
    listed, removed = asyncio.run(_listed(settings)), set[str]()
    if listed:
        removed = {each.tag for each in settings.each} - {one.settings.tag for one in listed}
    for one in listed:
        if one.added:
            pipe.send(says=f"{one.settings.model} is served too: `orca models add` has added it")
    for each in settings.each:
        if each.tag in removed:
            again = f"`orca models add {each.model}` adds it again"
            pipe.send(says=f"{each.model} is not served: `orca models remove` has removed it; {again}")
            continue
        for index, rank in itertools.product(range(each.engines), range(layout_of(each).size)):
            ensure_engine(each, index, rank)

    from ray import serve

    from actors.app import application, fewest_replicas

    values = settings.with_key_hashes() | {"redis_url": str(url)}
    # the external scalers are `_add_replicas` and `actors.scaling`
    first = application(values, fewest_replicas)
    # `serve.start` returns when HAProxy runs, for which the replicas need not wait
    while not serve.status().proxies:
        if starting.done():
            starting.result()  # it has failed; `serve.run` would start Serve on another address
        time.sleep(POLL)
    serve.run(first, name=APPLICATION, route_prefix="/", blocking=False, external_scaler_enabled=True)
    starting.result()


def _watch_engines(
    pipe: Pipe, watch: EngineWatch, tags: Collection[str], forever: bool, ready: threading.Event
) -> None:
    """Send the failures of engines until the server is ready; their schedulers try again for ever.

    The start ends with an error if an engine refuses its model, and, except for `forever`, if all engines of a model
    have failed several times. The supervisor then ends this process. That holds for the models of the configuration,
    which have these `tags`: without the server, its operator could not remove another one.
    """
    failures = StartFailures()
    with contextlib.suppress(OrcaError), pipe.reporting():
        while not ready.wait(LOOK_EVERY):
            for failure in watch.look():
                if tag_of_label(failure.engine) in tags:
                    failures.add(failure)
                pipe.send(says=str(failure))
            if not forever:
                for tag, engines in itertools.groupby(engine_labels(), key=tag_of_label):
                    if tag in tags:
                        failures.check(list(engines))


async def _quiet(settings: Settings) -> None:
    """Wait for a moment without requests: processes that start would take the processors from their first tokens."""
    pools = [pool for each in settings.each for pool in _pools(each)]

    async def busy() -> bool:
        with contextlib.suppress(OrcaError):
            overviews = [await pool.overview() for pool in pools]
            return any(overview.running + overview.waiting for overview in overviews)
        return False

    try:
        await quiet_moment(busy)
    finally:
        for pool in pools:
            await pool.close()


def _pools(settings: Settings) -> list[RequestPool]:
    return [shard.pool for shard in open_shards(settings, find_model(settings)[1])]


def _add_replicas(settings: Settings) -> None:
    """Start the spare schedulers, the schedulers of models that were added earlier, and the further gateways."""
    from actors.app import replicas

    added = sum(one.settings.engines for one in asyncio.run(_listed(settings)) if one.added and not one.leaving)
    for name, count in (replicas(settings) | {"scheduler": replicas(settings)["scheduler"] + added}).items():
        set_replicas(APPLICATION, name, count)


async def _listed(settings: Settings) -> list[ListedModel]:
    """The models of the list in the pool's server; none if that does not answer."""
    listing = ModelList(settings)
    try:
        return await listing.read()
    except OrcaError:
        return []
    finally:
        await listing.close()


async def _end_feeds(settings: Settings) -> None:
    """End the live feeds, which are requests that never end by themselves: `drain` would wait for them in vain."""
    for pool in (pool for each in settings.each for pool in _pools(each)):
        broadcast = pool.broadcast()
        with contextlib.suppress(OrcaError):
            await broadcast.publish(FRAMES, END)
        await broadcast.close()


def _stop(settings: Settings, folder: Path) -> None:
    """Refuse new connections, wait up to `drain_timeout` seconds for the requests under way, then end Serve, the
    engines and Ray."""
    if not ray.is_initialized():
        return
    drain(folder, settings.drain_timeout)
    with contextlib.suppress(Exception):  # a broken cluster cannot drain, but must end all the same
        from ray import serve

        serve.shutdown()
        for engine in engine_labels():
            remove_engine(engine)
    ray.shutdown()


if __name__ == "__main__":
    main()
