"""`python -m load.chaos.nodes.deploy FILE`: on the head, deploy a Serve config, as `serve deploy` does.

Ray's dashboard takes as much memory as two engines, so that heads here have none.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema


def main() -> None:
    config = ServeDeploySchema.model_validate(yaml.safe_load(Path(sys.argv[1]).read_text()))
    ray.init(address="auto", namespace="serve", logging_level=logging.ERROR, log_to_driver=False)
    serve.start(proxy_location=config.proxy_location, http_options=config.http_options.model_dump())
    client: Any = _get_global_client()
    client.deploy_apps(config, _blocking=False)


if __name__ == "__main__":
    main()
