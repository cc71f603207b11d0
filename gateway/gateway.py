"""Gateway: what the routes of all APIs share in one process, and its life."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from starlette.requests import HTTPConnection

from gateway.errors import ApiError, Kind
from gateway.executor import FairExecutor
from gateway.http.body import BodyLimits
from gateway.model import ServedModel
from gateway.pool_client.adapters import Adapters
from gateway.pool_client.request_record import RequestRecords
from gateway.pool_client.shards import Shard, Shards
from gateway.schemas.answers import Model
from gateway.schemas.json_size import most_values
from gateway.validation import Validator
from services.adapters.registry import Adapter
from services.background import keep_running, start
from services.joined import described
from services.messages import EngineFigures
from services.metrics import Counters
from services.pool.shards import PoolShard
from services.settings.settings import Settings
from services.tracing.tracer import open_tracer

STATM = Path("/proc/self/statm")  # sizes of this process in pages, the resident one second


class Gateway:
    """The parts of a gateway process that the routes of all APIs share. Its id is random: a restarted gateway is a new
    one."""

    def __init__(self, pools: Sequence[PoolShard], model: ServedModel, settings: Settings) -> None:
        self.id = secrets.token_hex(8)
        self.model = model
        self.settings = settings
        self.counters = Counters(settings.metrics_tenants)
        self.executor = FairExecutor()
        ignore, values = settings.unknown_fields == "ignore", most_values(model.info.max_model_len)
        self.limits = BodyLimits(self.executor, settings.constants.max_body_bytes, values, ignore)
        self.validator = Validator(self.id, model, settings, self.executor, self.figures)
        self.tracer = open_tracer(settings.otlp_traces_endpoint, "gateway")
        records = RequestRecords(self.tracer, settings.enable_log_requests, model.name, self.id)
        own = self.id, self.counters, self.executor, records, self.gauges, described(settings, model.tokenizer.tables)
        self.shards = Shards([Shard(pool, *own) for pool in pools])
        self.adapters = Adapters(self.shards.all, model, settings)

    def gauges(self) -> dict[str, float]:
        """What this gateway reports of itself: see `GATEWAY_GAUGES`."""
        resident = int(STATM.read_text().split()[1]) * resource.getpagesize()
        return {"requests": self.requests, "cpu": time.process_time(), "memory": resident}

    @property
    def requests(self) -> int:
        """The number of requests that are followed at this gateway."""
        return sum(shard.reader.requests for shard in self.shards.all)

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

    async def start(self) -> None:
        """Start the parts in the background, where they wait for a pool that is unavailable."""
        self._life = start(self._live(), "the gateway")

    async def stop(self) -> None:
        """Stop reading, close the open streams, and unregister from the pools that are available."""
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        await asyncio.gather(*(shard.stop() for shard in self.shards.all))
        if self.tracer:
            await asyncio.to_thread(self.tracer.close)
        self.executor.close()

    @property
    def alive(self) -> bool:
        """Whether the parts run. A gateway whose parts have ended would submit requests and receive no tokens."""
        return not self._life.done()

    async def _live(self) -> None:
        await asyncio.gather(keep_running(self.adapters.run), *(shard.run() for shard in self.shards.all))


def gateway_of(connection: HTTPConnection) -> Gateway:
    """The gateway that received this request."""
    gateway: Gateway = connection.app.state.gateway
    return gateway
