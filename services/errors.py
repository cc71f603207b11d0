"""The errors that cross module borders, by who must act on them."""

from __future__ import annotations


class OrcaError(Exception):
    """Base of all errors of this program."""


class SettingsError(OrcaError):
    """A setting is unknown, out of range or contradicts another; the message names it."""


class UsageError(SettingsError):
    """A command line, a variable or a settings file is wrong; the `orca` command ends with status 2."""


class ModelError(OrcaError):
    """The model cannot be found, converted or served; the message says which part of it and why."""


class OtherWeights(ModelError):
    """The model's files are not those that the server was started with: its streams must not go on with them."""


class EngineLost(OrcaError):
    """The engine died or does not answer: everything in flight on it must be recomputed elsewhere."""


class EngineStuck(EngineLost):
    """The engine lives but finishes no iteration: whoever holds its seat kills it and treats it as dead."""


class SchedulerFault(OrcaError):
    """The scheduler raised an exception that nobody expected. `requests` are those it may be about: the one it was
    handling, else those of the iterations in flight."""

    def __init__(self, requests: list[str]) -> None:
        super().__init__(f"the scheduler failed on {', '.join(requests) or 'no request in particular'}")
        self.requests = requests


class StaleEpoch(OrcaError):
    """The caller's epoch is over: somebody else owns the seat now."""


class PoolUnavailable(OrcaError):
    """The pool's server does not answer, or refuses for a reason that passes."""


class PoolFault(OrcaError):
    """The pool's server answered a call with an error that does not pass by itself: a fault of ours, or of the server.
    It says nothing about any request."""


class Unreadable(OrcaError, ValueError):
    """A message cannot be read: it was damaged, or another build wrote it that has other fields."""


class PoolDenied(PoolUnavailable):
    """The pool's server refuses the user or the password."""
