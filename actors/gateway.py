"""GatewayReplica: the gateway's FastAPI app as the ASGI app of a Serve replica."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from actors.ray_private import listen_on_node_address
from actors.replica import find_model, open_shards
from gateway.app import create_app, prepare_process
from gateway.gateway import ModelPools, load_models
from gateway.model import ServedModel
from services.errors import PoolUnavailable
from services.joined import described, join
from services.logs import configure
from services.model_list import ListedModel, ModelList
from services.models.generation import SamplingDefaults
from services.models.pin import pin
from services.settings.settings import Settings
from services.settings.sources import load
from services.text import Tokenizer

LATE = 5.0  # seconds until a gateway answers a health check

log = logging.getLogger(__name__)


@serve.ingress()
class GatewayReplica:
    """One replica. `scheduler` is never called: Serve learns of the second deployment because it is bound here."""

    def __init__(self, values: dict[str, Any], scheduler: DeploymentHandle[Any]) -> None:
        listen_on_node_address()
        self._settings = load(**values)
        self._late = 0.0  # Serve waits for the first answer
        configure(self._settings, "gateway")

    async def check_health(self) -> None:
        """Answer late. Serve knows that a replica has died when a call of it fails, so one is always under way."""
        await asyncio.sleep(self._late)
        self._late = LATE

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Raises SettingsError if the settings do not allow it to join the other servers of the pool."""
        source = ModelSource(self._settings)
        models = load_models(source, await source.first())
        for one in models:
            said = described(one.settings, one.model.tokenizer.tables)
            await join(said, [shard.pool for shard in one.pools], log.warning)
        app = create_app(models, self._settings, echo_request_id=False, source=source)
        prepare_process()
        return app


class ModelSource(ModelList):
    """The list of the models in the pool's server, and what a gateway needs of each."""

    async def first(self) -> list[ListedModel]:
        """The models at the start: without the server's answer, those of the configuration."""
        with contextlib.suppress(PoolUnavailable):
            return await self.read()
        return [ListedModel(each) for each in self._configured]

    def load(self, settings: Settings) -> ModelPools:
        return load_model(settings)

    def pin(self, model: str) -> str:
        return pin(model, self._settings.cache_dir, log.info)


def load_model(settings: Settings) -> ModelPools:
    """What a gateway has of the model of these settings. Raises ModelError, SettingsError."""
    folder, info = find_model(settings)
    name, *aliases = settings.served_model_name or (folder.name,)
    defaults = SamplingDefaults.load(folder, settings.generation_config, settings.override_generation_config)
    log.info("sampling defaults of %s: %s", name, defaults)
    tokenizer, allowed = Tokenizer.load(folder, info.pooling is None), settings.allow_control_tokens
    model = ServedModel(name, tokenizer, info, int(time.time()), defaults, tuple(aliases), allowed, folder)
    return ModelPools(model, open_shards(settings, info), settings)
