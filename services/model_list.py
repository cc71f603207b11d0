"""The models that were added to a configuration, or taken from it, while its servers ran. The pool's server keeps them,
so that every gateway and scheduler, and a cluster that is started again with this configuration, agree.

Each configuration, told by the names of its models, has changes of its own: a server that is started with other models
serves these.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from services.errors import SettingsError
from services.pool.connection import Connection
from services.settings.models import Entry, tag_of
from services.settings.settings import Settings

# replaces the changes if they are those that the caller has read
_SWAP = """if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1"""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model with its settings. `leaving`: it takes no new requests, and goes when it has none any more. `added`: the
    configuration does not have it, and what is wrong with it does not keep the others from being served."""

    settings: Settings
    leaving: bool = False
    added: bool = False


@dataclass(frozen=True, slots=True)
class _Changes:
    """`added` are entries as in the setting `models`; `leaving` and `gone` are what `tag_of` returns for models."""

    added: list[Entry] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


class ModelList:
    """The list of the servers with these settings, which must name the pool's server. Raises PoolUnavailable."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._configured = settings, settings.each
        self._server = Connection(settings.shards[0].url)
        names = hashlib.sha256("".join(map(_tag, self._configured)).encode()).hexdigest()[:12]
        self._key = f"orca:{{{settings.pool}.models}}:{names}"

    async def read(self) -> list[ListedModel]:
        """The models, at least one, the default one first."""
        return self._listed(_unpacked(await self._packed()))

    async def add(self, entry: Entry) -> None:
        """Add a model, as the last one. Raises SettingsError if there is one of its name and pool already."""
        tag = tag_of(entry["model"], entry["pool"])

        def change(changes: _Changes) -> _Changes:
            if any(_tag(one.settings) == tag for one in self._listed(changes)):
                raise SettingsError(f"{entry['model']} is served already, or is just being removed")
            return replace(changes, added=[*changes.added, entry])

        await self._change(change)

    async def leave(self, settings: Settings) -> None:
        """Let a model take no new requests; nothing happens if it has gone. Raises SettingsError for the last model
        that takes some."""

        def change(changes: _Changes) -> _Changes:
            if all(_tag(one.settings) != _tag(settings) for one in self._listed(changes)):
                return changes
            left = [one for one in self._listed(changes) if not one.leaving and _tag(one.settings) != _tag(settings)]
            if not left:
                raise SettingsError("it is the last model; add another one before you remove it")
            return replace(changes, leaving=sorted({*changes.leaving, _tag(settings)}))

        await self._change(change)

    async def drop(self, settings: Settings) -> None:
        """Forget a model that left, whose engines are gone; nothing happens if it was added again since."""
        tag = _tag(settings)

        def change(changes: _Changes) -> _Changes:
            if tag not in changes.leaving:
                return changes
            added = [entry for entry in changes.added if tag_of(entry["model"], entry["pool"]) != tag]
            gone = {*changes.gone} | ({tag} & {*map(_tag, self._configured)})
            return _Changes(added, [each for each in changes.leaving if each != tag], sorted(gone))

        await self._change(change)

    async def close(self) -> None:
        await self._server.close()

    def _listed(self, changes: _Changes) -> list[ListedModel]:
        configured = [each for each in self._configured if _tag(each) not in changes.gone]
        added = [*map(self._settings.of_model, changes.added)]
        models = [*((each, False) for each in configured), *((each, True) for each in added)]
        return [ListedModel(each, _tag(each) in changes.leaving, is_added) for each, is_added in models]

    async def _packed(self) -> str:
        found = await self._server.command("GET", self._key)
        return found.decode() if found else ""

    async def _change(self, change: Callable[[_Changes], _Changes]) -> None:
        while True:
            before = await self._packed()
            after = json.dumps(asdict(change(_unpacked(before))), sort_keys=True)
            if after == before or await self._server.command("EVAL", _SWAP, 1, self._key, before, after):
                return


def _tag(settings: Settings) -> str:
    """What tells a model from the others, whatever its place and its revision are."""
    return tag_of(settings.model, settings.pool)


def _unpacked(packed: str) -> _Changes:
    return _Changes(**json.loads(packed)) if packed else _Changes()
