"""Adapters: LoRA adapters that requests name as their model, loaded and unloaded while the server runs.

The registry is in the pool, so it is the same for all gateways, and still there after all processes have died. It is
read anew for each request that names none of the model's own names: a request that is sent after an adapter was loaded,
replaced or unloaded finds what holds since then, at any gateway. With several shards, each has the registry: a change
is written to all of them, and read from the first that answers. A file beside the adapters' content has it, too: a pool
that has lost its data gets it from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gateway.errors import ApiError, Kind
from gateway.http.headers import Caller
from gateway.model import ServedModel
from gateway.pool_client.shards import Shard
from services.adapters import peft, store
from services.adapters.registry import Adapter, Registry
from services.errors import ModelError, PoolUnavailable
from services.files import DISK_FULL
from services.models.linears import LinearShape, load_linears
from services.pool.shards import in_shard
from services.settings.adapters import LoraModule
from services.settings.settings import Settings

KEPT = 3600.0  # seconds: far longer than a gateway takes from the look at the registry to the submission
PERIOD = 600.0  # seconds between looks for the files of adapters that nobody names
RETRY = 0.5  # seconds, while the pool is unavailable, or files are being removed
LONGEST_NAME = 200  # characters
UNLOADED = "unloaded"  # in place of the digest of a request that is only continued

log = logging.getLogger(__name__)


class Adapters:
    """The adapters of one model at this gateway."""

    def __init__(self, shards: Sequence[Shard], model: ServedModel, settings: Settings) -> None:
        self._shards = shards
        self._model = model
        self._settings = settings
        self._files = settings.files_folder
        self._packed, self._registry = b"", Registry()
        self.announced = not settings.enable_lora  # whether those of the settings are in the pool

    # --- requests ---

    async def has(self, name: str) -> bool:
        """Whether there is an adapter of this name. Raises PoolUnavailable."""
        return name in (await self._read()).adapters

    async def by_digest(self) -> dict[str, list[str]] | None:
        """The names of all adapters by their digests; None if there can be none. Raises PoolUnavailable."""
        if not self._settings.enable_lora:
            return None
        names = defaultdict[str, list[str]](list)
        for name, each in (await self._read()).adapters.items():
            names[each.digest].append(name)
        return names

    async def visible(self, tenant: str | None) -> list[Adapter]:
        """The adapters that the tenant can name, by name; None: all. Raises PoolUnavailable."""
        found = (await self._read()).adapters.values() if self._settings.enable_lora else ()
        seen = (each for each in found if tenant is None or each.seen_by(tenant))
        return sorted(seen, key=lambda each: each.name)

    async def named_by(self, name: str, caller: Caller, earlier: str = "") -> Caller:
        """The caller with the adapter of this name, if there is one that its tenant can name. An adapter may have been
        unloaded since the request was accepted; `earlier`: the id that it then has, in any shard of any model. Raises
        PoolUnavailable; ApiError while the adapters of the settings are being loaded."""
        if not self._settings.enable_lora:
            return caller
        found = (await self._read()).adapters.get(name)
        if found and found.seen_by(caller.tenant):
            return replace(caller, adapter=found)
        if not found and not self.announced:
            raise ApiError(Kind.NO_ENGINE, "The adapters of this server are being loaded; try again later.", "model")
        key = caller.idempotency_key
        if key or earlier:
            ids = [(s, id) for s in self._shards for id in {earlier, in_shard(earlier, s.number, self._settings.tag)}]
            known = await asyncio.gather(*(shard.pool.knows(id, caller.tenant, key) for shard, id in ids))
            if any(known):
                return replace(caller, adapter=Adapter(name, UNLOADED, "", 0.0))
        return caller

    # --- changes ---

    async def load(self, name: str, path: str, inplace: bool = False, tenants: Sequence[str] = ()) -> None:
        """Load the adapter in a folder below `lora_dir` under this name. Raises ApiError, and PoolUnavailable, after
        which it may be loaded or not."""
        self._check_on()
        self._check_name(name)
        source, below = await asyncio.to_thread(self._place, path)

        def check(registry: Registry) -> None:
            if name in registry.adapters and not inplace:
                text = f"The lora adapter '{name}' has already been loaded. To replace it, set 'load_inplace' to true."
                raise ApiError(Kind.INVALID, text, "lora_name")
            if len(registry.adapters.keys() | {name}) > (most := self._settings.constants.max_adapters):
                text = f"{len(registry.adapters)} adapters are loaded, the maximum is {most}; unload one first."
                raise ApiError(Kind.INVALID, text, "lora_name")

        check(await self._read())
        async with held(self._files):
            try:
                digest = await self._store(source, below)
            except (ValueError, ModelError) as error:
                raise ApiError(Kind.INVALID, f"The adapter at '{path[:200]}': {error}.", "lora_path") from None
            except OSError as error:
                kind = Kind.FILES_FULL if error.errno in DISK_FULL else Kind.INVALID
                text = f"The adapter at '{path[:200]}' cannot be copied: {error.strerror}."
                raise ApiError(kind, text, "lora_path") from None
            adapter = Adapter(name, digest, str(source), time.time(), tuple(tenants))

            def add(registry: Registry) -> Registry:
                if registry.adapters.get(name) != adapter:
                    check(registry)
                return registry.naming(registry.adapters | {name: adapter})

            await self._change(add)
        log.info("the adapter %s is loaded from %s: %s", name, source, digest)

    async def unload(self, name: str) -> None:
        """Take the name from the registry: requests that were accepted continue. Raises ApiError, PoolUnavailable."""
        self._check_on()
        removed = False

        def remove(registry: Registry) -> Registry:
            nonlocal removed
            if name not in registry.adapters and not removed:
                text = f"The lora adapter '{name[:LONGEST_NAME]}' cannot be found."
                raise ApiError(Kind.NO_SUCH_OBJECT, text, "lora_name")
            removed = True
            return registry.naming({key: one for key, one in registry.adapters.items() if key != name})

        await self._change(remove)
        log.info("the adapter %s is unloaded", name)

    async def run(self) -> None:
        """Load the adapters of the settings, then `tend` them, until cancelled."""
        if not self._settings.enable_lora:
            return
        while not self.announced:
            try:
                await self._announce(self._settings.lora_modules)
                self.announced = True
            except PoolUnavailable:
                await asyncio.sleep(RETRY)
        while True:
            with contextlib.suppress(PoolUnavailable):
                await self.tend()
            await asyncio.sleep(PERIOD)

    async def tend(self) -> None:
        """Restore what pools have lost: the registry of a shard from the others', or from the file. Then `clean`.
        Raises PoolUnavailable."""
        try:
            await self._change(lambda registry: registry)
            if self._settings.lora_modules and not (await self._read()).version:  # the file is lost, too
                await self._announce(self._settings.lora_modules)
            await self.clean()
        except OSError as error:
            log.error("the adapters' files cannot be read or removed: %s", error)

    async def clean(self, kept: float = KEPT) -> None:
        """Remove the files of adapters that have had no name for `kept` seconds and that no open request names. Raises
        PoolUnavailable."""
        with contextlib.suppress(BlockingIOError), store.locked(self._files, alone=True):
            await asyncio.to_thread(store.remove_stale, self._files)
            unnamed, now = (await self._read()).unnamed, time.time()
            due = {digest for digest, since in unnamed.items() if since <= now - kept}
            if not due:
                return
            for shard in self._shards:
                for request, digest in (await shard.pool.adapted()).items():
                    if digest in due and (group := await shard.pool.group(request)) and not group.ended:
                        due.remove(digest)
            for digest in due:
                await asyncio.to_thread(store.remove, self._files, digest)
                log.info("the files of the adapter %s, which nobody names, are removed", digest)

            def forget(registry: Registry) -> Registry:
                left = {digest: since for digest, since in registry.unnamed.items() if digest not in due}
                return replace(registry, unnamed=left)

            await self._change(forget)

    async def _announce(self, modules: Sequence[LoraModule]) -> None:
        """Load what has changed in the configuration since it was read last; the rest stays as routes have left it."""
        async with held(self._files):
            before = (await self._read()).configured
            found: dict[str, Adapter] = {}
            for module in modules:
                try:
                    self._check_name(module.name)
                    digest = await self._store(module.path, None)
                except (ValueError, ModelError, OSError, ApiError) as error:
                    kept = ", so what it was before is kept" if module.name in before else ""
                    log.error("lora_modules: %s cannot be loaded from %s: %s%s", module.name, module.path, error, kept)
                    continue
                found[module.name] = Adapter(module.name, digest, str(module.path), time.time(), module.tenants)

            def apply(registry: Registry) -> Registry:
                adapters, configured = dict(registry.adapters), dict(registry.configured)
                for name in configured.keys() - {module.name for module in modules}:
                    said = configured.pop(name)
                    if name in adapters and _configured(adapters[name]) == said:
                        del adapters[name]
                for name, adapter in found.items():
                    if configured.get(name) != _configured(adapter):
                        adapters[name], configured[name] = adapter, _configured(adapter)
                return replace(registry.naming(adapters), configured=configured)

            await self._change(apply)

    async def _change(self, change: Callable[[Registry], Registry]) -> None:
        """Make what `change` returns of the latest registry that of all shards, and then that of the file. Raises
        PoolUnavailable if a shard does not answer."""
        file = store.registry_of(self._files, self._shards[0].pool.name)
        while True:
            held = [Registry.unpack(await shard.pool.adapters()) for shard in self._shards]
            kept = await asyncio.to_thread(Registry.kept, file)
            latest = max(*held, kept, key=lambda each: each.version)
            wanted = change(latest)
            if wanted != latest:
                wanted = replace(wanted, version=latest.version + 1)
            behind = [shard for shard, each in zip(self._shards, held, strict=True) if each.version < wanted.version]
            packed = wanted.pack()
            for shard in behind:  # always in this order: of two changes at once, the first shard chooses one
                if not await shard.pool.adapt(wanted.version, packed):
                    break
            else:
                if kept.version < wanted.version:
                    await asyncio.to_thread(wanted.keep, file)
                return

    # --- parts ---

    async def _read(self) -> Registry:
        """The registry as of now. Raises PoolUnavailable if no shard answers."""
        for shard in self._shards:
            try:
                packed = await shard.pool.adapters()
                break
            except PoolUnavailable as error:
                unavailable = error
        else:
            raise unavailable
        if packed != self._packed:
            self._packed, self._registry = packed, Registry.unpack(packed)
        return self._registry

    async def _store(self, source: Path, below: Path | None) -> str:
        """Copy and check the adapter in `source`. Returns its digest. Raises ValueError, ModelError, OSError;
        PoolUnavailable."""
        most = self._settings.constants.max_adapter_bytes
        # the same files in another pool are others: each pool removes its own
        model = f"{self._shards[0].pool.name} {self._model.info.revision}"
        draft, digest = await asyncio.to_thread(store.draft_of, source, self._files, model, most, below)
        try:
            await asyncio.to_thread(self._check, draft, source)
            # if this process dies now, it is known that nobody names the files
            await self._change(lambda registry: registry.with_files(digest))
            await asyncio.to_thread(store.keep, draft, self._files, digest)
        finally:
            await asyncio.to_thread(store.discard, draft)
        return digest

    def _check(self, draft: Path, source: Path) -> None:
        try:
            peft.check(draft, self._linears(), self._settings.max_lora_rank)
        except ValueError as error:
            raise ValueError(str(error).replace(str(draft), str(source))) from None

    def _place(self, path: str) -> tuple[Path, Path]:
        """The folder that `path` names, without links, and the one that it must be in. Raises ApiError."""
        if not self._settings.lora_dir:
            text = "This server loads no adapters by its API: its operator names the folder of adapters, lora_dir."
            raise ApiError(Kind.NOT_ENABLED, text, "lora_path")
        below = Path(self._settings.lora_dir).resolve()
        try:
            source = (below / path).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            raise ApiError(Kind.NO_SUCH_OBJECT, f"There is no adapter at '{path[:200]}'.", "lora_path") from None
        if not source.is_relative_to(below):
            text = f"'{path[:200]}' is not below '{below}' (lora_dir), where this server's adapters are."
            raise ApiError(Kind.INVALID, text, "lora_path")
        return source, below

    def _linears(self) -> Mapping[str, LinearShape]:
        if self._model.info.pooling:
            raise ValueError(f"the model '{self._model.name}' generates no text, so it takes no adapters")
        assert self._model.folder, "a gateway knows where its model is"
        return load_linears(self._model.folder, self._settings.cache_dir)

    def _check_on(self) -> None:
        if not self._settings.enable_lora:
            raise ApiError(Kind.NOT_ENABLED, "This server serves no adapters; its operator can set enable_lora.")

    def _check_name(self, name: str) -> None:
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            text = f"Invalid 'lora_name': {name[:LONGEST_NAME]!r} is not 1 to {LONGEST_NAME} printable characters."
            raise ApiError(Kind.INVALID, text, "lora_name")
        if name in self._model.names:
            raise ApiError(Kind.INVALID, f"'{name}' is the model itself; an adapter needs another name.", "lora_name")


@contextlib.asynccontextmanager
async def held(files: Path) -> AsyncIterator[None]:
    """Hold the lock of the adapters' folder, in common with others who load. No thread waits for it: who holds it
    alone may need one."""
    with contextlib.ExitStack() as lock:
        while True:
            try:
                await asyncio.to_thread(lock.enter_context, store.locked(files))
                break
            except BlockingIOError:
                await asyncio.sleep(RETRY)
        yield


def _configured(adapter: Adapter) -> str:
    """What of an adapter in the configuration replaces it if it changes."""
    return "\0".join((adapter.digest, *adapter.tenants))
