"""`orca serve`: the whole server on this machine, until Ctrl-C.

This process supervises two others: the pool's server, and the process that holds Ray. If it is killed, both go on; the
next `orca serve` on the port uses the same pool and replaces the cluster. Modules that are needed later are imported
when the cluster has begun to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Collection
from typing import Any

from actors.cluster.processes import end_processes_of
from actors.front_door import file_limit_warning, raise_file_limit
from cli.arguments import hide_secrets, parse_serve
from cli.place import Place
from cli.port_claim import PortClaim, own_url
from cli.prepared import Prepared
from cli.status import kept_weights, models_in
from cli.steps import Steps
from cli.supervisor import Supervisor
from cli.waiting import command_of, remember_command, waiting
from services.background import in_daemon_thread
from services.errors import PoolDenied, PoolUnavailable, SettingsError
from services.logs import configure
from services.overview import SleepLevel
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer
from services.progress import print_beside
from services.requests import DEFAULT_TENANT
from services.settings import device, exposure
from services.settings.settings import Settings
from services.tracing.tracer import check_tracing

CANCEL_TIMEOUT = 1.0  # seconds
STEPS = 4  # of a start: the model, the pool, Ray with a gateway, an engine

log = logging.getLogger(__name__)


def run(arguments: list[str]) -> None:
    hidden = hide_secrets()
    settings = parse_serve(arguments)
    exposure.check(settings)
    device.check(settings)
    check_tracing(settings.otlp_traces_endpoint)
    if settings.log_format == "json":
        configure(settings, "supervisor")
    say = Progress(settings)
    with PortClaim(settings) as claim:
        if left := claim.folder:  # before the folders are taken, which its processes use
            end_processes_of(left)
            shutil.rmtree(left, ignore_errors=True)
            claim.folder = None
        place = Place.take(settings)
        say(place.describe(settings))
        if left:
            say("ended the cluster that a killed orca serve left on this port")
        if hidden:
            say(f"{', '.join(hidden)}: hidden from ps, but perhaps in a shell's history; docs/security.md names files")
        asyncio.run(_serve(settings, place, claim, say))


class Progress:
    """Prints lines with the seconds since the start; with `log_format=json`, logs them instead."""

    def __init__(self, settings: Settings) -> None:
        self._start = time.monotonic()
        self._logs = settings.log_format == "json"

    def __call__(self, text: str) -> None:
        if self._logs:
            log.info("%s", text)
        else:
            print_beside(f"[{time.monotonic() - self._start:5.1f} s] {text}")


def needless_warning(settings: Settings) -> str:
    """What to say of a setting that changes nothing; empty: there is none."""
    if settings.models or settings.batch_invariant or "batch_invariant" not in settings.model_fields_set:
        return ""
    return "batch_invariant=false changes nothing: on the fast path a request's bits never depend on its batch"


def unnamed_adapters(settings: Settings) -> list[str]:
    """What to say of adapters that nobody can name, since no API key belongs to their tenants."""
    tenants = {*settings.tenants.values()} or {DEFAULT_TENANT}
    modules = (module for each in settings.each for module in each.lora_modules)
    return [
        f"lora_modules: {one.name} is for {', '.join(one.tenants)} alone, none of which is in api_keys: no request can "
        "name it"
        for one in modules
        if one.tenants and tenants.isdisjoint(one.tenants)
    ]


async def _serve(settings: Settings, place: Place, claim: PortClaim, say: Progress) -> None:
    _check_port(settings)
    _check_replicas(settings)
    if warning := file_limit_warning(settings, raise_file_limit()):
        say(warning)
    for warning in filter(None, (needless_warning(settings), *unnamed_adapters(settings))):
        say(warning)
    server = None
    if place.pool is not None:
        max_bytes = sum(each.max_pool_bytes for each in settings.each)
        server = PoolServer(choose_server(), place.pool, settings.durability, max_bytes=max_bytes)
    keep = [await server.join()] if server else []
    command = command_of(settings)
    settings = settings.model_copy(update={"files_dir": str(place.files)})
    steps = Steps(STEPS, "preparing the model", say)
    names: set[str] = set()  # of the models of the configuration in the API, when they are known
    supervisor = Supervisor(settings, claim, keep, lambda: _until_ready(settings, names, say, steps), say)
    running = _run(supervisor, settings, server, command, names, say, steps)
    serving, signals = asyncio.create_task(running), _stop_signals()
    interrupt = asyncio.create_task(signals.get())
    try:
        await asyncio.wait({serving, interrupt}, return_when=asyncio.FIRST_COMPLETED)
        if interrupt.done():
            say("stopping; once more to stop at once")
            await _stop(serving, supervisor, signals)
    finally:
        supervisor.end()
        if not await _has_ended(serving):
            say("stopped, without the end of what was under way")
            os._exit(os.EX_SOFTWARE)  # the event loop would wait for it
        if server and not await server.stop():
            say("the pool's server stays: others use it")
    if not serving.cancelled():
        serving.result()
    say("stopped")


async def _run(
    supervisor: Supervisor,
    settings: Settings,
    server: PoolServer | None,
    command: str,
    served: set[str],
    say: Progress,
    steps: Steps,
) -> None:
    async with steps:
        models, _ = await asyncio.gather(in_daemon_thread(Prepared.each, settings, say), _compile(settings, say))
        served |= {model.names[0] for model in models}
        for one in models:
            if one.defaults:
                which = f"{one.names[0]}: " * (len(models) > 1)
                how = "--generation-config vllm turns this off"
                say(f"{which}requests that do not say otherwise: {one.defaults} ({how})")
        names = {each.model: one.model for each, one in zip(settings.each, models, strict=True)}
        pinned = settings.pinned(lambda name: names.get(name, name))
        steps.next("starting the pool")
        url = settings.redis_url.get_secret_value()
        if server is not None:
            say(f"starting the pool's server, {server.binary.path}")
            url = await server.start()
            pools = [one.pool for one in models]
            for pool in pools:
                await remember_command(url, pool, command)
            async for line in waiting(settings.data_dir, server.data_dir, url, pools):
                say(line)
        else:
            await asyncio.gather(*(_check_pool(shard.url, settings, say) for shard in settings.shards))
            for each in pinned.each:
                await _compare(each, say)
        say("starting Ray")
        steps.next("starting Ray and Serve")
        async with _demo(supervisor, settings, say) as fragment:
            await supervisor.run(url, names, _ready_line(settings, fragment, models[0].has_chat))


async def _compile(settings: Settings, say: Progress) -> None:
    """Compile the kernels of engines on a CPU, if they are not kept."""
    if settings.null_engine or device.expects_gpu(settings):
        return
    from services.engine.backends.cpu.build import NoKernels, compiled

    try:
        await in_daemon_thread(compiled, settings.cache_dir, say)
    except (NoKernels, OSError) as error:
        say(f"no kernels, so transformers' own layers serve, several times slower: {' '.join(str(error).split())}")


@contextlib.asynccontextmanager
async def _demo(supervisor: Supervisor, settings: Settings, say: Progress) -> AsyncIterator[str]:
    """With the setting `demo`, a listener that kills processes for the page; gives the fragment of the page's URL."""
    if not settings.demo:
        yield ""
        return
    from cli.demo import Demo, metrics_of

    names = ("localhost", "127.0.0.1")  # by which the reader may have opened the page
    origins = {own_url(settings), *(own_url(settings.model_copy(update={"host": name})) for name in names)}
    demo = Demo(origins, lambda: supervisor.folder, metrics_of(own_url(settings)), say)
    try:
        yield f"#{await demo.start()}"
    finally:
        await demo.stop()


def _check_replicas(settings: Settings) -> None:
    if settings.wait_replicas and not settings.redis_url:
        asked = f"wait_replicas={settings.wait_replicas}"
        raise SettingsError(f"{asked}: the pool's server that Orca starts has no replicas; set redis_url")


async def _check_pool(url: str, settings: Settings, say: Progress) -> None:
    """Raises SettingsError if the pool's server refuses the password. If it does not answer, the processes of the
    cluster wait for it later."""
    from services.pool.pool import RequestPool

    pool = RequestPool(url, wait_replicas=settings.wait_replicas)
    try:
        await pool.connect()
    except PoolDenied as error:
        raise SettingsError(f"redis_url: {error}") from None
    except PoolUnavailable as error:
        say(f"waiting for the pool's server: {error}")
    finally:
        await pool.close()


async def _compare(settings: Settings, say: Progress) -> None:
    """Say how other servers of the pool differ. Raises SettingsError if this one may not join them."""
    from actors.replica import find_model, open_shards
    from services.joined import described, join
    from services.text import TextTables

    folder, info = await in_daemon_thread(find_model, settings)
    tables = await in_daemon_thread(TextTables.load, folder, info.pooling is None)
    own, shards = described(settings, tables), open_shards(settings, info)
    try:
        await join(own, [shard.pool for shard in shards], say)
    finally:
        for shard in shards:
            await shard.pool.close()


def _stop_signals() -> asyncio.Queue[int]:
    """A queue of the signals that stop the server."""
    received: asyncio.Queue[int] = asyncio.Queue()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # `nohup` ignores it
        numbers.append(signal.SIGHUP)
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, received.put_nowait, number)
    return received


async def _stop(serving: asyncio.Task[None], supervisor: Supervisor, signals: asyncio.Queue[int]) -> None:
    """Cancel `serving` and wait until the cluster has drained, or the next signal arrives."""

    async def stop() -> None:
        await asyncio.wait({serving})
        await supervisor.stop()

    serving.cancel()
    stopping, hurry = asyncio.create_task(stop()), asyncio.create_task(signals.get())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    for task in (stopping, hurry):
        task.cancel()


async def _has_ended(serving: asyncio.Task[None]) -> bool:
    """Whether the task ends when it is cancelled, once more if the first time was lost."""
    serving.cancel()
    await asyncio.wait({serving}, timeout=CANCEL_TIMEOUT)
    return serving.done()


def _check_port(settings: Settings) -> None:
    """Raises SettingsError if the server could not listen on its address."""
    try:
        (family, *_, place), *_ = socket.getaddrinfo(
            settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise SettingsError(f"port={settings.port}, host={settings.host}: {error.strerror}") from error


async def _until_ready(settings: Settings, names: Collection[str], say: Progress, steps: Steps) -> None:
    """Wait until the server answers that it is ready, with the models of these names, and say how it keeps the
    weights."""
    answers = False
    import httpx

    from actors.haproxy import UNSERVED

    # verify=False: the server asks itself, by an address for which the certificate need not be valid
    async with httpx.AsyncClient(base_url=own_url(settings), timeout=5, verify=False, trust_env=False) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):  # not listening yet
                ready = await client.get("/ready")
                if ready.is_success and not unready_models(ready.text, names):
                    for line in served((await client.get("/metrics")).raise_for_status().text, settings):
                        say(line)
                    return steps.end()
                if not answers and "json" in ready.headers.get("content-type", "") and UNSERVED not in ready.text:
                    answers = True
                    say("a gateway answers; waiting for an engine")
                    steps.next("loading an engine")
            await asyncio.sleep(0.1)


def served(metrics: str, settings: Settings) -> list[str]:
    """What a server with this page of metrics serves: its models, if there are several, how they keep their weights,
    and the adapters of the settings."""
    models, adapters = models_in(metrics), [module.name for each in settings.each for module in each.lora_modules]
    told = [f"models: {', '.join(models)}"] if len(models) > 1 else []
    told += [f"weights: {weights}" for weights in kept_weights(metrics)]
    return told + ([f"adapters: {', '.join(adapters)}"] if adapters else [])


def unready_models(text: str, names: Collection[str]) -> list[str]:
    """The lines of the text of /ready about models of these names without an engine that is ready, or that wakes up."""
    asleep = {level.name.lower() for level in SleepLevel}
    own = tuple(f"model {name}{end}" for name in names for end in (": ", ", shard "))
    return [line for line in text.splitlines() if line.startswith(own) and line.rpartition(": ")[2] not in asleep]


def _ready_line(settings: Settings, fragment: str, has_chat: bool) -> str:
    """The line for a server that is ready. `fragment` ends the URL of its page; `has_chat`: chats are possible."""
    path = "chat/completions" if has_chat else "completions"
    asked: dict[str, Any] = {"prompt": "The capital of France is"}
    if has_chat:
        asked = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    body = asked | {"temperature": 0}
    key = '-H "authorization: Bearer $ORCA_API_KEY" ' if settings.tenants else ""
    url = own_url(settings)
    page = "" if settings.disable_ui else f"  page: {url}/ui{fragment}"
    return (
        f"ready at {url}{page}  try: curl {url}/v1/{path} "
        f"{key}-H 'content-type: application/json' -d '{json.dumps(body)}'"
    )
