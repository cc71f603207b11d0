"""The gateway's FastAPI app as the ASGI app of a Serve replica."""

from __future__ import annotations

import logging
import time
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from actors.pool import open_pool
from actors.serve_ports import stay_on_node
from gateway.app import create_app, prepare_process
from gateway.model import ServedModel
from services.config import load
from services.models import resolve
from services.models.pin import pinned_info
from services.text import Tokenizer

log = logging.getLogger(__name__)


@serve.ingress()
class GatewayReplica:
    """One replica. `scheduler` is never called: binding it is how Serve learns of the second deployment."""

    def __init__(self, values: dict[str, Any], scheduler: DeploymentHandle[Any]) -> None:
        stay_on_node()
        self._settings = load(**values)

    def __serve_build_asgi_app__(self) -> FastAPI:
        settings = self._settings
        folder = resolve(settings.model, settings.cache_dir, log.info)
        info, name = pinned_info(settings.model, folder, settings.cache_dir), settings.served_model_name or folder.name
        model = ServedModel(name, Tokenizer.load(folder), info, created=int(time.time()))
        app = create_app(open_pool(settings, info), model, settings, echo_request_id=False)
        prepare_process()
        return app
