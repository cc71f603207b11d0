"""What the routes of all APIs share: `GatewayProcess`, and `Gateway`, one of its models."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import resource
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from starlette.requests import HTTPConnection

from gateway.errors import ApiError, Kind
from gateway.executor import FairExecutor
from gateway.http.body import BodyLimits
from gateway.http.headers import Caller
from gateway.model import ServedModel
from gateway.pool_client.adapters import Adapters
from gateway.pool_client.following import not_found
from gateway.pool_client.request_record import RequestRecords
from gateway.pool_client.shards import Shard, Shards
from gateway.schemas.answers import Model
from gateway.schemas.json_size import most_values
from gateway.validation import Validator
from services.adapters.registry import Adapter
from services.background import keep_running, start
from services.errors import ModelError, PoolUnavailable, SettingsError
from services.joined import described
from services.messages import EngineFigures
from services.metrics import Counters
from services.model_list import ListedModel
from services.models.generation import SamplingDefaults
from services.models.info import choose_length
from services.models.resolve import split
from services.pool.pool import RequestPool
from services.pool.shards import PoolShard, model_of
from services.settings.models import TAG, Entry, check_names, entries, own_entry
from services.settings.settings import Settings
from services.tracing.tracer import open_tracer

PERIOD = 1.0  # seconds between looks at the list of the models
MOST_NAMES = 20  # of models and adapters that an error tells
STATM = Path("/proc/self/statm")  # sizes of this process in pages, the resident one second

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelPools:
    """A model with its pools, not connected yet, and its settings: those of a server of this model alone."""

    model: ServedModel
    pools: Sequence[PoolShard]
    settings: Settings


class ModelSource(Protocol):
    """Which models are served, while that may change, and what a gateway needs of each."""

    async def read(self) -> list[ListedModel]: ...
    async def add(self, entry: Entry) -> None: ...
    async def leave(self, settings: Settings) -> None: ...
    def load(self, settings: Settings) -> ModelPools: ...
    def pin(self, model: str) -> str: ...
    async def close(self) -> None: ...


class Gateway:
    """One model at a gateway: its pools, its tokenizer and its limits. `process` has what all models share."""

    def __init__(self, process: GatewayProcess, served: ModelPools) -> None:
        settings = self.settings = served.settings
        length = choose_length(served.model.info.max_model_len, settings.max_model_len)
        model = self.model = replace(served.model, info=replace(served.model.info, max_model_len=length))
        self.process = process
        self.leaving = False  # it takes no new requests
        self.gone = False  # it has no engines any more
        self.id, self.executor = process.id, process.executor
        self.counters = Counters(settings.metrics_tenants)
        self.validator = Validator(self.id, model, settings, self.executor, self.figures)
        records = RequestRecords(process.tracer, settings.enable_log_requests, model.name, self.id)
        said = described(settings, model.tokenizer.tables)
        own = self.id, self.counters, self.executor, records, process.gauges, said
        self.shards = Shards([Shard(pool, *own) for pool in served.pools], settings.tag)
        self.adapters = Adapters(self.shards.all, model, settings)

    @property
    def requests(self) -> int:
        """The number of requests of this model that are followed at this gateway."""
        return sum(shard.reader.requests for shard in self.shards.all)

    async def knows(self, caller: Caller) -> bool:
        """Whether the model has a request with the caller's idempotency key. Raises PoolUnavailable."""
        if not (key := caller.idempotency_key):
            return False
        pools = (shard.pool for shard in self.shards.all)
        return any(await asyncio.gather(*(pool.knows("", caller.tenant, key) for pool in pools)))

    def model_card(self, name: str, adapter: Adapter | None = None) -> Model:
        """The model object under one of its names, or that of an adapter; see ServedModel."""
        known = {each.weights: None for each in self.shards.known_figures if each.weights}
        views = [view for shard in self.shards.all if (view := shard.heartbeat.known)]
        created = min((view.created for view in views if view.created), default=self.model.created)
        card = replace(self.model, created=created).card(name, "; ".join(known), adapter)
        level = min((view.level for view in views if view.level is not None), default=None)
        awake = "loading" if level is None else level.name.lower() if level else "ready"
        if failure := self.shards.failure:
            awake, card["failure"] = "failed", failure
        return {**card, "status": "leaving" if self.leaving else awake}

    async def figures(self) -> EngineFigures:
        """The limits of the largest engine, of the shard where these are lowest. Raises ApiError until there has been
        an engine; PoolUnavailable."""
        figures = await self.shards.figures()
        if figures is None:
            failure = self.shards.failure
            why = f"The model could not be loaded: {failure}" if failure else "No engine has been attached yet"
            raise ApiError(Kind.NO_ENGINE, f"{why}; try again later.")
        return figures

    @contextlib.contextmanager
    def rejections_counted(self) -> Iterator[None]:
        """Count the ApiError with which a request is rejected, if any."""
        try:
            yield
        except ApiError as error:
            self.counters.inc("vllm:admission_rejections", reason=error.kind.name.lower())
            raise

    async def run(self) -> None:
        """Run until cancelled, also while pools are unavailable."""
        await asyncio.gather(keep_running(self.adapters.run), *(shard.run() for shard in self.shards.all))

    async def stop(self) -> None:
        """Close the open streams, and unregister from the pools that are available. To be called after `run` ended."""
        await asyncio.gather(*(shard.stop() for shard in self.shards.all))


class GatewayProcess:
    """A gateway process: its models, and what they share. Its id is random: a restarted gateway is a new one."""

    def __init__(self, models: Sequence[ModelPools], settings: Settings, source: ModelSource | None = None) -> None:
        """The first model is the default. `source` tells which models there are later. Raises UsageError if two have a
        name or their pool in common."""
        self.id = secrets.token_hex(8)
        self.settings = settings
        self.executor = FairExecutor()
        self.tracer = open_tracer(settings.otlp_traces_endpoint, "gateway")
        self.all = [Gateway(self, served) for served in models]
        self._source = source
        self._runs: dict[Gateway, asyncio.Task[None]] = {}
        self._updating = asyncio.Lock()
        self._unserved: dict[str, str] = {}  # why models of the list are not, by their tags
        check_names(self._names)

    @property
    def first(self) -> Gateway:
        """The default model: the first that takes requests."""
        return next((gateway for gateway in self.all if not gateway.leaving), self.all[0])

    async def called(self, name: str | None, caller: Caller, earlier: str = "") -> tuple[Gateway, Caller]:
        """The model of this name, by default the first, and the caller with the adapter that has the name, if one has.
        `earlier`: the request that the client resumes, whose model is the default then; see also `Adapters.named_by`.
        Raises ApiError if there is none, or if it takes no new requests; PoolUnavailable."""
        if name is None:
            return (await self.holding(earlier) if earlier else self.first), caller
        found = await self._named_by(name, caller, earlier)
        if found is None and self._source:
            await self._update(self._source, again=False)  # another gateway may just have added it
            found = await self._named_by(name, caller, earlier)
        if found:
            gateway, caller = found
            return await self._taking(gateway, name, caller, earlier), caller
        staying = [gateway for gateway in self.all if not gateway.leaving]
        names = [own for gateway in staying for own in gateway.model.names]
        names += [one.name for gateway in staying for one in await gateway.adapters.visible(caller.tenant)]
        more = f" or {len(names) - MOST_NAMES} others; GET /v1/models names them" * (len(names) > MOST_NAMES)
        served = " or ".join(f"'{own}'" for own in names[:MOST_NAMES]) + more
        text = f"The model '{name[:100]}' does not exist; this server serves {served}."
        raise ApiError(Kind.MODEL_NOT_FOUND, text, "model")

    async def _named_by(self, name: str, caller: Caller, earlier: str) -> tuple[Gateway, Caller] | None:
        """The model that has this name or an adapter of this name, as `called` returns it; None if there is none."""
        for gateway in self.all:
            if name in gateway.model.names:
                return gateway, caller
        for gateway in self.all:
            adapted = await gateway.adapters.named_by(name, caller, earlier)
            if adapted.adapter:
                return gateway, adapted
        return None

    async def _taking(self, gateway: Gateway, name: str, caller: Caller, earlier: str) -> Gateway:
        """The model, unless it is being removed and has no earlier request that the client resumes or repeats. Raises
        ApiError; PoolUnavailable."""
        if gateway.leaving and not (earlier or await gateway.knows(caller)):
            text = f"The model '{name[:100]}' is being removed: it ends the requests that it has."
            raise ApiError(Kind.MODEL_NOT_FOUND, text, "model")
        return gateway

    async def check_name(self, adapter: str, model: Gateway) -> None:
        """Raises ApiError if a model, or an adapter of another one than `model`, has the name of this adapter;
        PoolUnavailable."""
        if any(adapter in gateway.model.names for gateway in self.all):
            raise ApiError(Kind.INVALID, f"'{adapter}' is a model's name; an adapter needs another one.", "lora_name")
        await self._check_adapters([adapter], "lora_name", model)

    async def _check_adapters(self, names: Iterable[str], param: str, but: Gateway | None = None) -> None:
        """Raises ApiError if an adapter of a model, `but` not of this one, has one of these names; PoolUnavailable."""
        for name, gateway in itertools.product(names, self.all):
            if gateway is not but and await gateway.adapters.has(name):
                text = f"'{name}' is an adapter of the model '{gateway.model.name}'; unload it, or take another name."
                raise ApiError(Kind.INVALID, text, param)

    def of(self, request: str) -> Gateway:
        """The model of a request, which its id names. Raises ApiError if it is not served (any more)."""
        tag = model_of(request)
        for gateway in self.all:
            if gateway.settings.has_tag(tag):
                return gateway
        if tag:
            raise not_found(request)
        return self.first

    async def holding(self, request: str) -> Gateway:
        """The model of a request whose id a client gives. An id without a tag may be older than the order of the
        models: it is also looked for in the pools of the others. Raises ApiError as `of`, and PoolUnavailable."""
        found = self.of(request)
        if model_of(request) or len(self.all) == 1:
            return found
        for gateway in (found, *(each for each in self.all if each is not found)):
            with contextlib.suppress(ApiError):  # it has no such shard
                if await gateway.shards.of(request).pool.group(request):
                    return gateway
        return found

    @property
    def limits(self) -> BodyLimits:
        """What bodies may have: as many values as the model with the longest context needs."""
        constants, ignore = self.settings.constants, self.settings.unknown_fields == "ignore"
        values = most_values(max(gateway.model.info.max_model_len for gateway in self.all))
        return BodyLimits(self.executor, constants.max_body_bytes, values, ignore)

    def gauges(self) -> dict[str, float]:
        """What this gateway reports of itself: see `GATEWAY_GAUGES`."""
        resident = int(STATM.read_text().split()[1]) * resource.getpagesize()
        gauges = {"requests": self.requests, "cpu": time.process_time(), "memory": resident}
        readers = (shard.reader for gateway in self.all for shard in gateway.shards.all)
        return gauges | {key: count for reader in readers for key, count in reader.adapted().items()}

    @property
    def requests(self) -> int:
        """The number of requests that are followed at this gateway."""
        return sum(gateway.requests for gateway in self.all)

    async def start(self) -> None:
        """Start the parts in the background, where they wait for a pool that is unavailable."""
        self._life = start(self._live(), "the gateway")

    async def stop(self) -> None:
        """Stop reading, close the open streams, and unregister from the pools that are available."""
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        await asyncio.gather(*(gateway.stop() for gateway in self.all))
        if self._source:
            await self._source.close()
        if self.tracer:
            await asyncio.to_thread(self.tracer.close)
        self.executor.close()

    @property
    def alive(self) -> bool:
        """Whether the parts run. A gateway whose parts have ended would submit requests and receive no tokens."""
        return not self._life.done()

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            self._runs = {gateway: self._group.create_task(gateway.run()) for gateway in self.all}
            if self._source:
                await keep_running(partial(self._follow, self._source))

    # --- models that come and go ---

    async def load(self, entry: Entry) -> Gateway:
        """Add a model with these settings of its own, which all gateways then serve. Returns when this one does. Raises
        ApiError for a model that cannot be served, and PoolUnavailable."""
        assert self._source, "models come from a list"
        source = self._source
        try:
            (given,) = entries([{"pool": self.settings.pool} | entry])
            own = own_entry(self.settings.of_server(), given, Settings)
            own["model"] = await asyncio.to_thread(source.pin, own["model"])
            made = await asyncio.to_thread(source.load, self.settings.of_model(own))
            check_names([*self._names, _named(made.model, made.pools[0].pool)])
            await self._check_adapters(made.model.names, "model")
            await source.add(own)
        except (ModelError, SettingsError, ValueError) as error:
            raise ApiError(Kind.INVALID, f"The model cannot be served: {error}", "model") from None
        await self._update(source)
        if added := next((gateway for gateway in self.all if gateway.settings.tag == own[TAG]), None):
            return added
        await source.leave(made.settings)
        raise ApiError(Kind.INVALID, f"The model cannot be served: {self._unserved.get(own[TAG], 'it left')}", "model")

    async def unload(self, name: str) -> Model:
        """Let a model take no new requests, and go when it has none any more. Returns its card. Raises ApiError,
        PoolUnavailable."""
        assert self._source, "models come from a list"
        gateway = next((each for each in self.all if name in each.model.names), None)
        listed = (one.settings for one in await self._source.read())
        unserved = (each for each in listed if name in (split(each.model)[0], *each.served_model_name))
        settings = gateway.settings if gateway else next(unserved, None)
        if settings is None:
            raise ApiError(Kind.MODEL_NOT_FOUND, f"The model '{name[:100]}' does not exist.", "model")
        try:
            await self._source.leave(settings)
        except SettingsError as error:
            raise ApiError(Kind.INVALID, f"The model '{name[:100]}' stays: {error}.", "model") from None
        if gateway is None:  # it could not be served, so nothing is known of it
            info = replace(self.first.model.info, name=settings.model, max_model_len=settings.max_model_len)
            unknown = replace(self.first.model, info=info, defaults=SamplingDefaults())
            return {**unknown.card(name), "status": "leaving"}
        gateway.leaving = True
        return gateway.model_card(gateway.model.name)

    async def _follow(self, source: ModelSource) -> None:
        """Serve the models of the list, looking each `PERIOD` seconds."""
        while True:
            with contextlib.suppress(PoolUnavailable):
                await self._update(source)
            await asyncio.sleep(PERIOD)

    async def _update(self, source: ModelSource, again: bool = True) -> None:
        """Begin to serve models that are new in the list, and stop those that are not in it any more, when their last
        answers have been read. `again`: those that could not be served are tried again."""
        async with self._updating:
            found = {one.settings.tag: one for one in await source.read()}
            for gateway in self.all:
                one = found.get(gateway.settings.tag)
                gateway.gone = one is None or one.settings != gateway.settings  # perhaps it was added again
                gateway.leaving = one is None or gateway.gone or one.leaving
                if gateway.gone and not gateway.requests:
                    self.all = [each for each in self.all if each is not gateway]
                    self._runs.pop(gateway).cancel()
                    await gateway.stop()
            known = {gateway.settings.tag for gateway in self.all}
            for tag, one in found.items():
                if tag not in known and (again or tag not in self._unserved):
                    await self._begin(source, one)
            order = {tag: place for place, tag in enumerate(found)}  # the default is the same at all gateways
            self.all = sorted(self.all, key=lambda each: order.get(each.settings.tag, len(order)))

    async def _begin(self, source: ModelSource, one: ListedModel) -> None:
        """Serve a model that is new in the list. Why one cannot be served is noted and said once."""
        try:
            made = await asyncio.to_thread(source.load, one.settings)
            check_names([*self._names, _named(made.model, made.pools[0].pool)])
        except (ModelError, SettingsError) as error:
            if self._unserved.get(one.settings.tag) != str(error):
                log.error("%s is not served: %s", one.settings.model, error)
            self._unserved[one.settings.tag] = str(error)
            return
        gateway = Gateway(self, made)
        gateway.leaving = one.leaving
        self._runs[gateway] = self._group.create_task(gateway.run())
        self.all = [*self.all, gateway]
        self._unserved.pop(one.settings.tag, None)

    @property
    def _names(self) -> list[tuple[str, Sequence[str], str]]:
        return [_named(each.model, each.shards.all[0].pool) for each in self.all]


def load_models(source: ModelSource, listed: Iterable[ListedModel]) -> list[ModelPools]:
    """What a gateway that starts needs of each model of the list. One that was added and cannot be served is left out;
    the gateway tries it again later. Raises ModelError and SettingsError for one of the configuration, or if none is
    left."""
    found: list[ModelPools] = []
    for one in listed:
        try:
            made = source.load(one.settings)
            check_names([_named(each.model, each.pools[0].pool) for each in (*found, made)])
        except (ModelError, SettingsError) as error:
            if not one.added:
                raise
            log.error("%s is not served: %s", one.settings.model, error)
        else:
            found.append(made)
    if not found:
        raise ModelError("none of the models that were added can be served")
    return found


def _named(model: ServedModel, pool: RequestPool) -> tuple[str, Sequence[str], str]:
    """A model as `check_names` takes it."""
    return model.info.name, model.names, pool.name


def gateway_of(connection: HTTPConnection) -> GatewayProcess:
    """The gateway that received this request."""
    gateway: GatewayProcess = connection.app.state.gateway
    return gateway
