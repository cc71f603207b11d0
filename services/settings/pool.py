"""Settings of the pool: its server or its shards, how durable it is, and its folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import BaseSettings

from services.files import absolute_folder, user_data
from services.pool.shards import ShardUrl, parse_shards
from services.settings.types import Folder, PoolUrl, Section


class PoolSettings(BaseSettings):
    """The part of `Settings` about the pool."""

    redis_url: Annotated[
        PoolUrl,
        Section.POOL,
        Field(
            description="URL of the pool's server, or of several shards: '0=URL 1=URL', or the file that holds it; "
            "empty: start one as a child process"
        ),
    ] = SecretStr("")
    pool: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_.-]{1,48}$", description="first part of the pool's name in the server")
    ] = "default"
    durability: Annotated[
        Literal["everysec", "strict"],
        Field(description="when the started pool server syncs its file: each second, or at each write"),
    ] = "everysec"
    wait_replicas: Annotated[
        int,
        Field(ge=0, description="replicas of redis_url's server that have a token before a client sees it; 0: none"),
    ] = 0
    data_dir: Annotated[
        Path,
        AfterValidator(absolute_folder),
        Field(description="folder of pools, files and batches; a part for each port"),
    ] = user_data()
    files_dir: Annotated[
        Folder,
        Field(description="folder of files and batches, shared by all nodes; empty: in data_dir"),
    ] = ""

    @property
    def shards(self) -> tuple[ShardUrl, ...]:
        """The pools that `redis_url` names; none if a server is to be started."""
        return parse_shards(self.redis_url.get_secret_value())

    @property
    def files_folder(self) -> Path:
        """The folder of files and batches."""
        return Path(self.files_dir) if self.files_dir else self.data_dir / "files"

    def check_pool(self, engines: int, fewest: int) -> None:
        """Raises ValueError for contradictions, and if `engines`, or the `fewest` that autoscaling leaves, are fewer
        than the shards."""
        if self.redis_url and self.durability == "strict":
            raise ValueError(
                "durability=strict is for the server that Orca starts; with redis_url, set it in that server"
            )
        if (shards := len(self.shards)) > engines:
            raise ValueError(f"redis_url names {shards} shards, engines={engines}: each shard needs an engine")
        if shards > fewest:
            raise ValueError(f"redis_url names {shards} shards, min_engines={fewest}: each shard needs an engine")
