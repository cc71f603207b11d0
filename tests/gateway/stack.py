"""Gateway, scheduler and engine loop on a real pool, in a thread with its own event loop, served on a real port."""

from __future__ import annotations

import asyncio
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn
from echo_engine import EchoEngine

from actors.replica import limits_of
from gateway.app import create_app
from gateway.gateway import ModelPools, ModelSource
from gateway.model import ServedModel
from services.live.publisher import FramePublisher
from services.live.recorder import Recorder
from services.loop.clock import now
from services.loop.engine_loop import EngineLoop
from services.loop.iteration_cost import IterationCost
from services.loop.local_engine import LocalEngine, LocalSeat
from services.messages import EngineFigures
from services.metrics import Counters
from services.models import ModelInfo
from services.models.generation import SamplingDefaults
from services.pool.pool import RequestPool
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer
from services.pool.shards import PoolShard, parse_shards
from services.requests import FEATURES
from services.scheduling import Knobs, Scheduler
from services.settings.settings import Settings
from services.text import Tokenizer
from services.tracing.tenures import TenureTraces
from services.tracing.tracer import Tracer, open_tracer

T = TypeVar("T")
NAME = "tiny"
SEAT = "seat"
LEASE = 3.0


class Background(ABC):
    """An event loop in a thread for the duration of a `with`. `_run` runs in it and sets `_up` when it is ready."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._up = threading.Event()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run in the background loop, from the test's thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def _begin(self) -> None:
        self._thread.start()
        assert self._up.wait(20)
        assert self._thread.is_alive()

    def _end(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _live(self) -> None:
        try:
            self._loop.run_until_complete(self._run())
        finally:
            self._up.set()

    @abstractmethod
    async def _run(self) -> None: ...


class Server(Background):
    """A pool server on `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.url = ""

    def __enter__(self) -> Server:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._end()

    async def _run(self) -> None:
        self.server = PoolServer(choose_server(), self._folder)
        self.url = await self.server.start()
        self._over = asyncio.Event()
        self._up.set()
        await self._over.wait()
        await self.server.stop()


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a stack's seat."""

    loop: EngineLoop
    engine: LocalEngine
    publishing: asyncio.Task[None]
    tracer: Tracer | None


WEIGHTS = "gptq, 4 bits in groups of 32: all 2 quantized weights as stored, 7 MB in memory"


class Stack(Background):
    """`with Stack(...) as stack` serves at `stack.url`, which `stack.http` asks. Without `engine` no seat is acquired.
    `redis_url` may name several shards; each has a seat then."""

    def __init__(self, redis_url: str, pool_name: str, folder: Path, settings: Settings, engine: bool = True) -> None:
        super().__init__()
        self.settings = settings
        self.info = ModelInfo.load(folder)
        self.tokenizer = Tokenizer.load(folder, self.info.pooling is None)
        length, vocabulary = self.info.max_model_len, self.info.vocab_size
        self.figures = EngineFigures(NAME, length, 25, 16, vocabulary, "echo", WEIGHTS, 7, FEATURES)
        self.batch_size = 8
        self._redis_url, self._pool_name, self._folder, self._with_engine = redis_url, pool_name, folder, engine
        self.url = ""

    def __enter__(self) -> Stack:
        self._begin()
        self.http = httpx.Client(base_url=self.url, timeout=20)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self._server.should_exit = True
        self._end()

    def second(self) -> Stack:
        """Another gateway on the same pool, without a seat."""
        return Stack(self._redis_url, self._pool_name, self._folder, self.settings, engine=False)

    def _open_pools(self) -> list[PoolShard]:
        limits = limits_of(self.settings)
        shards = parse_shards(self._redis_url)
        return [PoolShard(RequestPool(s.url, self._pool_name, limits), s.number, s.state) for s in shards]

    async def _run(self) -> None:
        self.pools = {shard.number: shard.pool for shard in self._open_pools()}
        self.pool = next(iter(self.pools.values()))
        owners = [await self._owner(pool) for pool in self.pools.values()] if self._with_engine else []
        serving = [asyncio.create_task(owner.loop.run()) for owner in owners]
        self.app = create_app(self.models(), self.settings, source=self.source())
        config = uvicorn.Config(self.app, log_level="warning", lifespan="on", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does not set it for such a socket
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        answering = asyncio.create_task(self._server.serve([listening]))
        self._up.set()
        await answering
        for owner in owners:
            owner.loop.stop()
        await asyncio.gather(*serving)
        for owner in owners:
            owner.publishing.cancel()
            await asyncio.wait({owner.publishing})
            owner.engine.close()
            if owner.tracer:
                await asyncio.to_thread(owner.tracer.close)
        for pool in self.pools.values():
            await pool.close()

    def source(self) -> ModelSource | None:
        """Where the gateway reads which models there are later."""
        return None

    def models(self) -> list[ModelPools]:
        """What the gateway serves, with pools that are not connected yet."""
        return [ModelPools(self._served(), self._open_pools(), self.settings)]

    def _served(self) -> ServedModel:
        settings = self.settings
        defaults = SamplingDefaults.load(self._folder, settings.generation_config, settings.override_generation_config)
        name, *aliases = settings.served_model_name or (NAME,)
        return ServedModel(name, self.tokenizer, self.info, 1, defaults, tuple(aliases), folder=self._folder)

    def _make_engine(self) -> Any:
        return EchoEngine(self.figures, self.tokenizer)

    async def _owner(self, pool: RequestPool) -> Owner:
        epoch = (await pool.acquire(SEAT, "test", LEASE)).epoch
        self.engine = self._make_engine()
        self.engine.reset(epoch)
        engine = LocalEngine(self.engine)
        scheduler = Scheduler(
            epoch=epoch,
            figures=self.figures,
            knobs=Knobs(max_batch_size=self.batch_size, whole_prompts=self.figures.whole_prompts),
            eos_token_ids=self.info.eos_token_ids,
            text=self.tokenizer.tables,
        )
        recorder = self.recorder = Recorder(SEAT, epoch, scheduler)
        publishing = asyncio.create_task(FramePublisher(pool.broadcast(), recorder).run())
        tracer = open_tracer(self.settings.otlp_traces_endpoint, "scheduler")
        traces = [TenureTraces(tracer, SEAT, epoch, now)] if tracer else []
        loop = EngineLoop(
            pool,
            scheduler,
            engine,
            LocalSeat(SEAT, epoch),
            LEASE,
            self.figures,
            Counters(),
            IterationCost(),
            observers=[recorder, *traces],
        )
        return Owner(loop, engine, publishing, tracer)
