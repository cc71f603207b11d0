"""All settings of Orca in one class: flag `--name-of-it`, variable `ORCA_NAME_OF_IT`, `name_of_it` in a settings file.

A flag wins over a variable, a variable over the file of `--config`, that file over `orca.toml` in the current folder.
An unknown or contradictory setting is an error that names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from services import secret_files, settings_environment, settings_file
from services.addresses import bare
from services.errors import UsageError
from services.setting_errors import explain
from services.setting_types import Keys, PoolUrl, Section, TenantOfKey, Words
from services.tenant_limits import BoundSettings
from services.user_folders import user_cache, user_data

FILE = "orca.toml"
DEFAULT_TENANT = "default"
# settings whose value no message repeats
SECRETS = frozenset({"api_key", "api_keys", "api_keys_file", "redis_url", "redis_url_file"})
NOT_SETTINGS = frozenset({"ORCA_SCHEMAS"})  # variables with our prefix: where the tests find the schemas


class Settings(BoundSettings, BaseSettings):
    """What a server is told; every default is stated here. `load` reads files and variables, this class does not."""

    model_config = SettingsConfigDict(env_prefix="ORCA_", extra="forbid", frozen=True)

    model: Annotated[
        str, Section.API, Field(description="a transformers folder, a GGUF file, a hub id, or 'default'")
    ] = "default"
    served_model_name: Annotated[str, Field(description="its name in the API; empty: derived from the model")] = ""
    host: Annotated[str, AfterValidator(bare), Field(description="address the API binds")] = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535, description="port of the API")] = 8000
    ssl_certfile: Annotated[str, Field(description="certificate, with those between, in PEM: the API speaks TLS")] = ""
    ssl_keyfile: Annotated[str, Field(description="its key, in PEM; empty: it is in ssl_certfile too")] = ""
    allowed_hosts: Annotated[
        Words,
        Field(description="names in the Host header beside localhost; '*': any; none: any, unless host is loopback"),
    ] = []
    redis_url: Annotated[
        PoolUrl, Section.POOL, Field(description="pool server; empty: start one as a child process")
    ] = SecretStr("")
    redis_url_file: Annotated[str, Field(description="file that holds redis_url")] = ""
    pool: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_.-]{1,48}$", description="first part of the pool's name in its server")
    ] = "default"
    durability: Annotated[
        Literal["everysec", "strict"],
        Field(description="the started server syncs its file each second, or always"),
    ] = "everysec"
    data_dir: Annotated[
        Path, AfterValidator(Path.absolute), Field(description="where the started pool server keeps its file")
    ] = user_data()
    files_dir: Annotated[
        str,
        AfterValidator(lambda folder: folder and str(Path(folder).absolute())),  # processes have folders of their own
        Field(description="where files and batches are kept, shared by all nodes; empty: files in data_dir"),
    ] = ""
    cache_dir: Annotated[
        Path, Section.ENGINE, Field(description="where converted models and compiled kernels are kept")
    ] = user_cache()

    engines: Annotated[int, Field(ge=1, description="engines on the pool, each with a scheduler of its own")] = 1
    gateways: Annotated[int, Section.API, Field(ge=1, description="gateway replicas")] = 2
    policy: Annotated[
        Literal["iteration", "request"],
        Section.SCHEDULING,
        Field(description="iteration: Orca's scheduling; request: a batch is fixed until its last request ends"),
    ] = "iteration"
    order: Annotated[
        Literal["fcfs", "priority"],
        Field(description="who waits before whom: by arrival, or by class, then slack to the TTFT target, with ageing"),
    ] = "fcfs"
    ageing: Annotated[
        float, Field(ge=0, le=86_400, description="order=priority: seconds of waiting that make up for a class")
    ] = 60.0
    ttft_target: Annotated[
        float, Field(gt=0, le=3600, description="order=priority: seconds to the first token where a request says none")
    ] = 10.0
    max_batch_size: Annotated[int, Field(ge=1, description="requests in one iteration at most")] = 32
    token_budget: Annotated[
        int,
        Field(ge=0, description="tokens of one iteration at most: decodes, then chunks of prompts; 0: whole prompts"),
    ] = 0
    tbt_target: Annotated[
        float, Field(ge=0, description="seconds between tokens that chunks of prompts should leave room for; 0: none")
    ] = 0.0
    admission: Annotated[
        Literal["reserve", "on_demand"],
        Field(description="KV blocks: all from the start, or as they fill, with preemption when they run out"),
    ] = "reserve"
    lookahead: Annotated[
        int,
        Field(ge=0, le=1, description="1: the engine has its next iteration before the last one's tokens are known"),
    ] = 0
    prefix_caching: Annotated[bool, Field(description="share KV blocks between requests that begin alike")] = True
    share_prefixes: Annotated[
        bool, Field(description="across tenants too; a tenant can then time what others sent")
    ] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Section.ENGINE, Field(description="auto: cuda where there is one")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Field(description="auto: bfloat16 where the device computes it faster, else float32"),
    ] = "auto"
    weights: Annotated[
        Literal["dtype", "int8"],
        Field(description="int8: weights of products in eight bits, half to a quarter of the memory; CPU only"),
    ] = "dtype"
    batch_invariant: Annotated[
        bool,
        Field(description="on CUDA: a request's logits have the same bits in any batch, at a price; CPUs always do"),
    ] = False
    block_size: Annotated[int, Field(ge=1, le=1024, description="tokens of one KV block")] = 16
    kv_blocks: Annotated[
        int, Field(ge=0, description="KV blocks of an engine; 0: what kv_memory_fraction of the free memory holds")
    ] = 0
    kv_memory_fraction: Annotated[float, Field(gt=0, lt=1, description="share of the free memory for KV blocks")] = 0.25
    max_model_len: Annotated[int, Field(ge=0, description="longest prompt + output; 0: the model's own")] = 0
    threads: Annotated[
        int, Field(ge=0, description="CPU threads of a rank; 0: all cores, shared by an engine's ranks")
    ] = 0
    tp: Annotated[int, Field(ge=1, description="tensor-parallel ranks that share each layer; lean path only")] = 1
    pp: Annotated[int, Field(ge=1, description="pipeline stages that share the layers, likewise")] = 1
    null_engine: Annotated[
        bool, Section.TESTING, Field(description="an engine without a model, to measure the plane alone")
    ] = False

    lease: Annotated[float, Section.POOL, Field(ge=3, description="seconds a seat is held without a sign of life")] = (
        5.0
    )
    keep_ended: Annotated[float, Section.POOL, Field(ge=1, description="seconds an ended request stays readable")] = (
        600.0
    )
    grace: Annotated[
        float,
        Field(ge=1, description="seconds a resumable request, or one whose gateway died, runs without a follower"),
    ] = 60.0
    api_key: Annotated[
        Keys, Section.LIMITS, Field(description="API key of the tenant 'default', or several, or hashes sha256:HEX")
    ] = ()
    api_keys: Annotated[
        TenantOfKey, Field(description="tenant of each further API key, as JSON; no key at all: none is asked for")
    ] = {}
    api_keys_file: Annotated[str, Field(description="file of further keys: lines 'tenant: key'; hashes likewise")] = ""
    allow_no_keys: Annotated[bool, Field(description="serve others than this machine without API keys")] = False
    allowed_origins: Annotated[
        Words,
        Section.API,
        Field(description="CORS: origins whose pages may call the API, separated by spaces or a JSON list; '*': all"),
    ] = []
    allow_credentials: Annotated[bool, Field(description="CORS: pages may send cookies and the like")] = False
    allowed_methods: Annotated[Words, Field(description="CORS: methods they may use, likewise")] = ["*"]
    allowed_headers: Annotated[Words, Field(description="CORS: headers they may send, likewise")] = ["*"]
    drain_timeout: Annotated[
        float,
        Section.API,
        Field(ge=0, description="seconds a replica that is told to stop may take for the streams it has"),
    ] = 10.0
    deadly_token: Annotated[
        int,
        Section.TESTING,
        Field(ge=-1, description="an engine that is to compute this token id kills itself; to test faults; -1: none"),
    ] = -1
    max_body_bytes: Annotated[int, Section.LIMITS, Field(ge=1024, description="longest HTTP body")] = 8 << 20
    max_file_bytes: Annotated[int, Field(ge=1024, description="longest file")] = 200 << 20
    max_tenant_bytes: Annotated[int, Field(ge=1024, description="bytes of all files of a tenant")] = 10 << 30
    max_batch_lines: Annotated[int, Field(ge=1, description="lines of a batch")] = 50_000
    lines_in_flight: Annotated[
        int, Field(ge=1, description="lines of batches that a gateway has in the pool at once")
    ] = 64
    unknown_fields: Annotated[
        Literal["refuse", "ignore"],
        Section.API,
        Field(description="unknown fields of a request: refuse with a 400, or ignore with a warning in the log"),
    ] = "refuse"
    completion_max_tokens: Annotated[
        int, Section.LIMITS, Field(ge=1, description="default max_tokens of completions")
    ] = 16
    chat_max_tokens: Annotated[int, Field(ge=1, description="default max_tokens of chat, less where less fits")] = 1024

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.redis_url and self.durability == "strict":
            raise ValueError("durability=strict is for the server we start; with redis_url set it in that server")
        if 0 < self.token_budget < self.max_batch_size:
            raise ValueError(
                f"token_budget={self.token_budget} is less than max_batch_size={self.max_batch_size}: "
                "each request of a full batch needs a token"
            )
        if self.share_prefixes and not self.prefix_caching:
            raise ValueError("share_prefixes=True shares nothing with prefix_caching=False")
        if self.tp * self.pp > 1:
            self._check_ranks()
        for key in self.api_key:
            if self.tenants[key] != DEFAULT_TENANT:
                raise ValueError(f"a key of api_key is that of the tenant {self.tenants[key]!r} in api_keys")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ValueError("ssl_keyfile: set ssl_certfile too, the certificate of this key")
        if self.device == "cpu" and self.dtype == "float16":
            raise ValueError("dtype=float16 is not served on device=cpu; use bfloat16 or float32")
        return self

    @property
    def files_folder(self) -> Path:
        """Where files and batches are."""
        return Path(self.files_dir) if self.files_dir else self.data_dir / "files"

    def _check_ranks(self) -> None:
        asked = f"tp={self.tp}, pp={self.pp}"
        if self.lookahead:
            raise ValueError(f"lookahead=1 is for an engine of one process, not with {asked}")
        if self.null_engine:
            raise ValueError(f"a null engine has no layers to split with {asked}")

    @property
    def tenants(self) -> dict[str, str]:
        """The tenant of each API key, by its hash; empty: no key is asked for."""
        return dict.fromkeys(self.api_key, DEFAULT_TENANT) | self.api_keys

    @property
    def several_tenants(self) -> bool:
        return len(set(self.tenants.values())) > 1

    def earliest_class_of(self, tenant: str) -> int:
        """The earliest class that requests of this tenant may ask for."""
        return self.earliest(tenant, guarded=self.several_tenants and self.order == "priority")

    def without_secrets(self) -> dict[str, Any]:
        """All settings as JSON, for another process: API keys and the pool's URL read as not set."""
        unset = {name: Settings.model_fields[name].default for name in SECRETS}
        return self.model_copy(update=unset).model_dump(mode="json")

    def with_key_hashes(self) -> dict[str, Any]:
        """The same, with hashes of API keys: for a process that asks for keys."""
        return self.without_secrets() | {"api_key": list(self.api_key), "api_keys": self.api_keys}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # with others a dictionary would be the union of what each says


def sections() -> dict[Section, list[str]]:
    """The names of all settings by section, both in the order to show them."""
    found: dict[Section, list[str]] = {section: [] for section in Section}
    section = Section.API
    for name, field in Settings.model_fields.items():
        section = next((mark for mark in field.metadata if isinstance(mark, Section)), section)
        found[section].append(name)
    return found


def load(config: Path | None = None, /, **flags: Any) -> Settings:
    """The settings of this process: `flags` over the environment over the file `config` over `orca.toml`.

    Raises UsageError naming each setting that is unknown, out of range or contradicts another.
    """
    return made(given(config, **flags))


def made(values: dict[str, Any]) -> Settings:
    """The settings that `values` say by name, those in files of their own read. Raises UsageError."""
    try:
        return Settings(**secret_files.resolved(values))
    except ValidationError as error:
        raise UsageError(explain(error, Settings.model_fields, SECRETS)) from None


def given(config: Path | None = None, /, **flags: Any) -> dict[str, Any]:
    """What `load` is given, as it is written: keys are keys, files of secrets are names. Raises UsageError."""
    names = Settings.model_fields
    values = settings_file.read(Path(FILE), names) if Path(FILE).exists() else {}
    if config is not None:
        values = secret_files.over(values, settings_file.read(config, names))
    values = secret_files.over(values, settings_environment.read(Settings, NOT_SETTINGS))
    return secret_files.over(values, flags)
