"""The exceptions that cross module boundaries."""

from __future__ import annotations


class OrcaError(Exception):
    """The base class of all errors of this program."""


class SettingsError(OrcaError):
    """A setting is unknown, out of range, or contradicts another one. The message names it."""


class UsageError(SettingsError):
    """A command line, a variable or a settings file is wrong. The `orca` command ends with status 2."""


class ModelError(OrcaError):
    """The model cannot be found, converted or served. The message says which part of it, and why."""


class HubUnavailable(ModelError):
    """The hub does not answer, and the model is not on this machine. It may answer later."""


class OtherWeights(ModelError):
    """The model's files are not those that the server was started with. Streams must not continue with them."""


class GrammarError(OrcaError, ValueError):
    """A grammar is not valid, exceeds a limit, or does not allow a token. The message says why."""


class EngineLost(OrcaError):
    """The engine died or does not answer. Everything in flight on it has to be recomputed."""


class NoRoom(OrcaError):
    """An engine cannot load its weights yet, because other engines have the memory of the machine."""


class EngineStuck(EngineLost):
    """The engine lives but finishes no iteration. The owner of its seat kills it and treats it as dead."""


class SchedulerFault(OrcaError):
    """The scheduler raised an unexpected exception. `requests` are those that it may be about: the request that was
    being handled or, if that is unknown, those of the iterations in flight.
    """

    def __init__(self, requests: list[str]) -> None:
        super().__init__(f"the scheduler failed on {', '.join(requests) or 'no request in particular'}")
        self.requests = requests


class NotWanted(OrcaError):
    """A seat has become surplus: its cluster is to have fewer engines."""


class StaleEpoch(OrcaError):
    """The caller's epoch is over: the seat has another owner."""


class LaterEpoch(StaleEpoch):
    """An engine has heard of an owner under a later epoch, whose number is `number`."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(what, number)
        self.number = number

    def __str__(self) -> str:
        return str(self.args[0])


class PoolUnavailable(OrcaError):
    """The pool's server does not answer, or refuses calls for a temporary reason."""


class PoolFault(OrcaError):
    """The pool's server answered a call with a permanent error, which is our fault or the server's, and not that of a
    request.
    """


class Unreadable(OrcaError, ValueError):
    """A message cannot be read: it is damaged, or was written by a build with other fields."""


class PoolDenied(PoolUnavailable):
    """The pool's server refuses the user or the password."""
