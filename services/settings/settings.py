"""All settings in one class. A setting is a flag `--its-name`, a variable `ORCA_ITS_NAME`, or `its_name` in a file.

A flag takes precedence over a variable, a variable over the file of `--config`, and that file over `orca.toml` in the
current folder (see `sources`). An unknown or contradictory setting is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ByteSize, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from services.files import absolute_folder, user_cache
from services.overview import SleepLevel
from services.requests import DEFAULT_TENANT
from services.settings.adapters import AdapterSettings
from services.settings.addresses import is_loopback, normalize
from services.settings.constants import Constants
from services.settings.model import ModelSettings, method
from services.settings.models import OWN, TAG, Entry, settled, tag_of
from services.settings.names import PARTS
from services.settings.pool import PoolSettings
from services.settings.scheduling import SchedulingSettings
from services.settings.tenants import EARLIEST, BoundSettings, TenantLimits
from services.settings.types import Keys, ReasoningParser, Section, TenantOfKey, ToolCallParser, Words, auto_or
from services.sleep import SleepRule

FILE = "orca.toml"
# settings whose value is not repeated in any message
SECRETS = frozenset({"api_key", "api_keys", "api_keys_file", "operator_api_key", "redis_url"})
# variables with our prefix: the folder of the tests' schemas, a GGUF file that they read, and constants that they set
NOT_SETTINGS = frozenset({"ORCA_SCHEMAS", "ORCA_GGUF", "ORCA_CONSTANTS"})


def _collector(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError("is not the URL of a collector that takes OTLP over HTTP, as http://localhost:4318/v1/traces")
    return url


class Settings(BoundSettings, PoolSettings, SchedulingSettings, AdapterSettings, ModelSettings, BaseSettings):
    """All settings with their defaults. `sources.load` reads files and variables, this class does not."""

    model_config = SettingsConfigDict(env_prefix="ORCA_", extra="forbid", frozen=True)

    host: Annotated[str, Section.API, AfterValidator(normalize), Field(description="address that the API binds")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Field(ge=1, le=65535, description="port of the API")] = 8000
    ssl_certfile: Annotated[str, Field(description="certificate chain in PEM; if set, the API uses TLS")] = ""
    ssl_keyfile: Annotated[
        str, Field(description="private key of ssl_certfile in PEM; empty: the key is in ssl_certfile")
    ] = ""
    allowed_hosts: Annotated[
        Words,
        Field(
            description="names accepted in Host headers besides localhost; '*': any; none: any, unless host is loopback"
        ),
    ] = []
    gateways: Annotated[int, Field(ge=1, description="number of gateway replicas")] = 2
    allowed_origins: Annotated[
        Words,
        Field(description="CORS: origins whose pages may call the API, separated by spaces or a JSON list; '*': all"),
    ] = []
    disable_ui: Annotated[
        bool,
        Field(
            description="serve no live page at /ui; it shows each key's owner the load, without ids of other tenants"
        ),
    ] = False
    drain_timeout: Annotated[
        float,
        Field(ge=0, description="seconds for which a stopping replica waits for its streams"),
    ] = 10.0
    unknown_fields: Annotated[
        Literal["refuse", "ignore"],
        Field(description="unknown fields of a request: refuse with a 400, or ignore with a warning in the log"),
    ] = "refuse"
    allow_control_tokens: Annotated[
        bool,
        Field(description="texts of chats that are spelled like control tokens become these, as in vLLM"),
    ] = False
    tool_call_parser: ToolCallParser = "auto"
    reasoning_parser: ReasoningParser = "auto"

    models: Annotated[
        tuple[dict[str, Any], ...],
        NoDecode,
        Field(
            description="several models behind one API: names, or JSON objects with the settings of each (model, "
            "served_model_name, engines, max_model_len, ...); the first is the default; none: one model"
        ),
    ] = ()

    engines: Annotated[
        int, Section.ENGINE, Field(ge=1, description="number of engines, each with its own scheduler")
    ] = 1
    cache_dir: Annotated[
        Path,
        AfterValidator(absolute_folder),
        Field(description="folder of converted models and compiled kernels"),
    ] = user_cache()
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="auto: cuda if there is a GPU")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Field(description="auto: bfloat16 if the device computes it faster, else float32"),
    ] = "auto"
    weights: Annotated[
        Literal["auto", "dtype", "int8"],
        Field(
            description="auto: as the checkpoint stores them, if the backend executes it, else as dtype; "
            "dtype: widened; int8: matrix products in eight bits, CPU only"
        ),
    ] = "auto"
    quantization: Annotated[
        str,
        AfterValidator(method),
        Field(
            description="the method of the checkpoint (gptq, awq, fp8, compressed-tensors, mxfp4, modelopt, "
            "bitsandbytes, gguf), which is found without it: another one is refused. Changes nothing; the setting "
            "weights says how they are kept"
        ),
    ] = ""
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8_per_token_head"],
        Field(
            description="dtype of keys and values; auto: dtype; int8_per_token_head: eight bits, with a scale for each "
            "token and head, in about half the memory of bfloat16; float32 or bfloat16 other than dtype: CPU only"
        ),
    ] = "auto"
    batch_invariant: Annotated[
        bool,
        Field(
            description="refuse a model on layers with which a request's bits depend on its batch (transformers' own); "
            "false changes nothing: the fast path's never do"
        ),
    ] = False
    block_size: Annotated[
        int,
        Field(
            ge=0,
            le=1024,
            description="number of tokens in one KV block; 0: 16, or more for a model whose layers keep a state",
        ),
    ] = 0
    kv_blocks: Annotated[
        int, Field(ge=0, description="KV blocks of an engine; 0: as many as kv_memory_fraction allows")
    ] = 0
    kv_memory_fraction: Annotated[
        float | Literal["auto"],
        auto_or("a share", "between 0 and 1", float, lambda share: 0 < share < 1),
        Field(description="share of the free memory for KV blocks; auto: 0.25, and 0.9 on GPUs"),
    ] = "auto"
    max_model_len: Annotated[
        int, Field(ge=0, description="maximum length of prompt and output in tokens; 0: that of the model")
    ] = 0
    threads: Annotated[
        int,
        Field(ge=0, description="CPU threads of a rank; 0: all cores that the CPU limit allows, shared by the ranks"),
    ] = 0
    tp: Annotated[int, Field(ge=1, description="tensor-parallel ranks that share each layer; fast path only")] = 1
    pp: Annotated[int, Field(ge=1, description="pipeline stages that share the layers; fast path only")] = 1

    max_engines: Annotated[
        int,
        Section.AUTOSCALING,
        Field(ge=0, description="maximum number of engines, of which `engines` start; 0: always `engines`"),
    ] = 0
    min_engines: Annotated[
        int,
        Field(
            ge=0,
            description="minimum number of engines, with max_engines; 0, with sleep_idle_seconds: the processes of an "
            "engine that sleeps end, too",
        ),
    ] = 1
    sleep_idle_seconds: Annotated[
        float,
        Field(
            ge=0,
            description="seconds without a request after which an engine gives back its KV cache; after as many again, "
            "its weights; and with min_engines=0, after as many again, its processes. A request wakes it up. 0: never",
        ),
    ] = 0.0
    max_gateways: Annotated[
        int,
        Field(ge=0, description="maximum number of gateways; `gateways` is the minimum; 0: always `gateways`"),
    ] = 0
    memory: Annotated[
        ByteSize,
        Field(
            description="memory of a machine for all engines on its CPUs, as 12GiB; models that do not fit together "
            "take turns. 0: what is free; engines of one model alone are not bounded"
        ),
    ] = ByteSize(0)
    turn_seconds: Annotated[
        float,
        Field(
            ge=0,
            description="seconds after which a busy engine makes room for one of another model that waits for memory",
        ),
    ] = 60.0

    api_key: Annotated[
        Keys,
        Section.LIMITS,
        Field(description="one or more API keys of the tenant 'default', or their hashes sha256:HEX"),
    ] = ()
    api_keys: Annotated[
        TenantOfKey,
        Field(description="further API keys with their tenants, as JSON; without any key, the API requires none"),
    ] = {}
    api_keys_file: Annotated[str, Field(description="file of further API keys or hashes: lines 'tenant: key'")] = ""
    operator_api_key: Annotated[
        Keys,
        Field(
            description="key, or its hash sha256:HEX, of the routes that change what is served; or the file that holds "
            "it, by its whole path: /...; none: these routes are off"
        ),
    ] = ()
    allow_no_keys: Annotated[bool, Field(description="allow other machines to use the API without keys")] = False

    log_format: Annotated[
        Literal["text", "json"],
        Section.OBSERVABILITY,
        Field(description="format of the processes' logs; json: one object per line, with ids of requests and traces"),
    ] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Field(description="the least level of Orca's messages in the logs"),
    ] = "info"
    enable_log_requests: Annotated[
        bool,
        Field(description="log a line at the end of each request: its tokens, its times and how it ended, no text"),
    ] = False
    otlp_traces_endpoint: Annotated[
        str,
        AfterValidator(_collector),
        Field(description="URL to which OpenTelemetry traces are sent, by OTLP over HTTP; empty: no traces"),
    ] = ""

    demo: Annotated[
        bool,
        Section.TESTING,
        Field(description="orca serve: the page at /ui can kill the engine and the scheduler; host must be loopback"),
    ] = False
    null_engine: Annotated[bool, Field(description="run an engine without a model, to measure everything else")] = False
    deadly_token: Annotated[
        int,
        Field(
            ge=-1, description="an engine kills itself when it has to compute this token id, to test faults; -1: none"
        ),
    ] = -1

    constants: Constants = Constants()
    tag: str = ""  # of the model: ids of its requests and names of its engines have it

    @model_validator(mode="before")
    @classmethod
    def _with_models(cls, values: dict[str, Any]) -> dict[str, Any]:
        return settled(values, cls)

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        self.check_pool(self.engines, self.fewest_engines if self.max_engines else self.engines)
        self.check_scheduling()
        self.check_adapters()
        self._check_autoscaling()
        if self.tp * self.pp > 1:
            self._check_ranks()
        for key in self.api_key:
            if self.tenants[key] != DEFAULT_TENANT:
                raise ValueError(f"a key of api_key is that of the tenant {self.tenants[key]!r} in api_keys")
        if set(self.operator_api_key) & self.tenants.keys():
            raise ValueError("operator_api_key is the key of a tenant too; the operator needs a key of its own")
        if self.demo and self.disable_ui:
            raise ValueError("demo is for the page at /ui, which disable_ui turns off")
        if self.demo and not is_loopback(self.host):
            raise ValueError(f"demo lets the page kill processes; set host to a loopback address, not {self.host!r}")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ValueError("ssl_keyfile: set ssl_certfile too, the certificate of this key")
        if self.tag and self.tag != tag_of(self.model, self.pool):
            raise ValueError(f"models: tag={self.tag!r} is no setting; a model's tag is made of its name and its pool")
        if self.device == "cpu" and self.dtype == "float16":
            raise ValueError("dtype=float16 is not served on device=cpu; use bfloat16 or float32")
        return self

    def _check_autoscaling(self) -> None:
        """Raise ValueError if the bounds contradict each other or the numbers at the start."""
        if self.max_engines and not self.min_engines <= self.engines <= self.max_engines:
            raise ValueError(
                f"engines={self.engines} must be from min_engines={self.min_engines} to max_engines={self.max_engines}"
            )
        if not self.min_engines and not self.sleep_idle_seconds:
            raise ValueError("min_engines=0 needs sleep_idle_seconds, after which the engines end")
        if self.min_engines > 1 and not self.max_engines:
            raise ValueError(f"min_engines={self.min_engines} needs max_engines; without it, set engines")
        if self.max_gateways and self.max_gateways < self.gateways:
            raise ValueError(f"max_gateways={self.max_gateways} is less than gateways={self.gateways}, the minimum")

    def _check_ranks(self) -> None:
        asked = f"tp={self.tp}, pp={self.pp}"
        if self.lookahead == 1:
            raise ValueError(f"lookahead=1 is for an engine of one process, not with {asked}")
        if self.null_engine:
            raise ValueError(f"a null engine has no layers to split with {asked}")

    @property
    def fewest_engines(self) -> int:
        """The smallest number of engines, those that sleep included."""
        return max(1, self.min_engines)

    @property
    def sleep(self) -> SleepRule:
        """When engines sleep."""
        return SleepRule(self.sleep_idle_seconds, SleepLevel.COLD if self.min_engines else SleepLevel.OFF)

    @property
    def each(self) -> tuple[Settings, ...]:
        """The settings of each model, the default one first."""
        return tuple(map(self.of_model, self.models)) or (self,)

    def pinned(self, pin: Callable[[str], str]) -> Settings:
        """Return these settings with `pin` of the name of each model, and of the name of each tokenizer."""
        names = [{"model": pin(each.model), "tokenizer": each.tokenizer and pin(each.tokenizer)} for each in self.each]
        entries = tuple(entry | name for entry, name in zip(self.models, names, strict=False))
        return self.model_copy(update={**names[0], "models": entries})

    def of_model(self, entry: Entry) -> Settings:
        """Return the settings of the model with this entry, as a server of this model alone would have them."""
        shared = {name: getattr(self, name) for name in Settings.model_fields if name != "models"}
        return Settings(**shared | entry)

    def of_server(self) -> dict[str, Any]:
        """Return the values of the settings that no model has of its own."""
        return {name: getattr(self, name) for name in NAMES if name not in OWN and name != "models"}

    def has_tag(self, tag: str) -> bool:
        """Return whether ids of this model's requests may have this tag: its own, or the one that it has in another
        place of the list."""
        return tag in (self.tag, tag_of(self.model, self.pool))

    @property
    def most_engines(self) -> int:
        """The largest number of engines that the settings of this model allow."""
        return max(self.engines, self.max_engines)

    @property
    def tenants(self) -> dict[str, str]:
        """The tenant of each API key, by the key's hash. If it is empty, the API needs no key."""
        return dict.fromkeys(self.api_key, DEFAULT_TENANT) | self.api_keys

    @property
    def several_tenants(self) -> bool:
        return len(set(self.tenants.values())) > 1

    def earliest_class_of(self, tenant: str) -> int:
        """Return the earliest class that requests of this tenant may have: that of `tenant_limits`; else the default
        class, where others would wait for an earlier one; else the earliest one that exists."""
        if (named := self.tenant_limits.get(tenant, TenantLimits()).earliest_class) is not None:
            return named
        return 0 if self.several_tenants and self.order == "priority" else EARLIEST

    def without_secrets(self) -> dict[str, Any]:
        """Return all settings as JSON for another process, with API keys and the pool's URL not set."""
        unset = {name: Settings.model_fields[name].default for name in SECRETS}
        values = self.model_copy(update=unset).model_dump(mode="json")
        return values | dict.fromkeys(PARTS, "")  # the model has them, whatever the process finds in its environment

    def with_key_hashes(self) -> dict[str, Any]:
        """Return all settings as JSON with the hashes of API keys, for a process that checks keys."""
        return self.without_secrets() | {
            "api_key": list(self.api_key),
            "api_keys": self.api_keys,
            "operator_api_key": list(self.operator_api_key),
        }

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **others: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # with other sources, dictionaries of several sources would be merged


NAMES = [name for name in Settings.model_fields if name not in ("constants", TAG)]


def sections() -> dict[Section, list[str]]:
    """Return the names of all settings by section, in the order in which they are shown."""
    found: dict[Section, list[str]] = {section: [] for section in Section}
    section = Section.API
    for name in NAMES:
        metadata = Settings.model_fields[name].metadata
        section = next((mark for mark in metadata if isinstance(mark, Section)), section)
        found[section].append(name)
    return found
