"""What the routes of all APIs share: `GatewayProcess`, and `Gateway`, one of its models."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from starlette.requests import HTTPConnection

from gateway.errors import ApiError, Kind
from gateway.executor import FairExecutor
from gateway.http.body import BodyLimits
from gateway.http.headers import Caller
from gateway.model import ServedModel
from gateway.pool_client.adapters import Adapters
from gateway.pool_client.request_record import RequestRecords
from gateway.pool_client.shards import Shard, Shards, not_found
from gateway.schemas.answers import Model
from gateway.schemas.json_size import most_values
from gateway.validation import Validator
from services.adapters.registry import Adapter
from services.background import keep_running, start
from services.joined import described
from services.messages import EngineFigures
from services.metrics import Counters
from services.models.info import choose_length
from services.pool.shards import PoolShard, model_of
from services.settings.models import check_names
from services.settings.settings import Settings
from services.tracing.tracer import open_tracer

STATM = Path("/proc/self/statm")  # sizes of this process in pages, the resident one second


@dataclass(frozen=True, slots=True)
class ModelPools:
    """A model with its pools, not connected yet, and its settings: those of a server of this model alone."""

    model: ServedModel
    pools: Sequence[PoolShard]
    settings: Settings


class Gateway:
    """One model at a gateway: its pools, its tokenizer and its limits. `process` has what all models share."""

    def __init__(self, process: GatewayProcess, served: ModelPools) -> None:
        settings = self.settings = served.settings
        length = choose_length(served.model.info.max_model_len, settings.max_model_len)
        model = self.model = replace(served.model, info=replace(served.model.info, max_model_len=length))
        self.process = process
        self.id, self.executor = process.id, process.executor
        self.counters = Counters(settings.metrics_tenants)
        self.validator = Validator(self.id, model, settings, self.executor, self.figures)
        records = RequestRecords(process.tracer, settings.enable_log_requests, model.name, self.id)
        said = described(settings, model.tokenizer.tables)
        own = self.id, self.counters, self.executor, records, process.gauges, said
        self.shards = Shards([Shard(pool, *own) for pool in served.pools], settings.number)
        self.adapters = Adapters(self.shards.all, model, settings)

    @property
    def limits(self) -> BodyLimits:
        """What bodies may have, whichever model they name."""
        return self.process.limits

    @property
    def requests(self) -> int:
        """The number of requests of this model that are followed at this gateway."""
        return sum(shard.reader.requests for shard in self.shards.all)

    def of(self, request: str) -> Gateway:
        """The model of a request: see `GatewayProcess.of`."""
        return self.process.of(request)

    def model_card(self, name: str, adapter: Adapter | None = None) -> Model:
        """The model object under one of its names, or that of an adapter; see ServedModel."""
        known = {each.weights: None for each in self.shards.known_figures if each.weights}
        views = [view for shard in self.shards.all if (view := shard.heartbeat.known)]
        created = min((view.created for view in views if view.created), default=self.model.created)
        return replace(self.model, created=created).card(name, "; ".join(known), adapter)

    async def figures(self) -> EngineFigures:
        """The limits of the largest engine, of the shard where these are lowest. Raises ApiError until there has been
        an engine; PoolUnavailable."""
        figures = await self.shards.figures()
        if figures is None:
            raise ApiError(Kind.NO_ENGINE, "No engine has been attached yet; try again later.")
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

    def __init__(self, models: Sequence[ModelPools], settings: Settings) -> None:
        """The first model is the default. Raises UsageError if two have a name or their pool in common."""
        self.id = secrets.token_hex(8)
        self.settings = settings
        self.executor = FairExecutor()
        self.tracer = open_tracer(settings.otlp_traces_endpoint, "gateway")
        self.all = [Gateway(self, served) for served in models]
        check_names([(each.model.info.name, each.model.names, each.shards.all[0].pool.name) for each in self.all])

    @property
    def first(self) -> Gateway:
        """The default model."""
        return self.all[0]

    async def called(self, name: str | None, caller: Caller, earlier: str = "") -> tuple[Gateway, Caller]:
        """The model of this name, by default the first, and the caller with the adapter that has the name, if one has.
        `earlier`: see `Adapters.named_by`. Raises ApiError if there is none; PoolUnavailable."""
        if name is None:
            return self.first, caller
        for gateway in self.all:
            if name in gateway.model.names:
                return gateway, caller
        for gateway in self.all:
            adapted = await gateway.adapters.named_by(name, caller, earlier)
            if adapted.adapter:
                return gateway, adapted
        served = ", ".join(f"'{own}'" for gateway in self.all for own in gateway.model.names)
        text = f"The model '{name[:100]}' does not exist; this server serves {served}."
        raise ApiError(Kind.MODEL_NOT_FOUND, text, "model")

    def check_name(self, adapter: str) -> None:
        """Raises ApiError if a model has the name of this adapter."""
        if any(adapter in gateway.model.names for gateway in self.all):
            raise ApiError(Kind.INVALID, f"'{adapter}' is a model's name; an adapter needs another one.", "lora_name")

    def of(self, request: str) -> Gateway:
        """The model of a request, which its id names. Raises ApiError if it is not served (any more)."""
        number = model_of(request)
        for gateway in self.all:
            if gateway.settings.number == number:
                return gateway
        raise not_found(request)

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
        if self.tracer:
            await asyncio.to_thread(self.tracer.close)
        self.executor.close()

    @property
    def alive(self) -> bool:
        """Whether the parts run. A gateway whose parts have ended would submit requests and receive no tokens."""
        return not self._life.done()

    async def _live(self) -> None:
        await asyncio.gather(*(gateway.run() for gateway in self.all))


def gateway_of(connection: HTTPConnection) -> GatewayProcess:
    """The gateway that received this request."""
    gateway: GatewayProcess = connection.app.state.gateway
    return gateway
