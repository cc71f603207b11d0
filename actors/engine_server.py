"""EngineServer: the engine's side, in the process of a rank: a thread that runs iterations, one after another."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import select
import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from actors.channel import READ_BYTES, SECRET_BYTES, Answer, Door, Frames, Order, framed, prepare
from services.background import start_thread
from services.errors import StaleEpoch
from services.started import Started
from services.wire import unpack

T = TypeVar("T")
MAX_STRANGERS = 16  # connections that have not sent the secret yet; one more closes the oldest

log = logging.getLogger(__name__)


class EngineServer:
    """Runs the orders of the owner that is connected, and between two of them what `call` asks for.

    All work is in one thread, because a pool of OpenMP threads belongs to the thread that uses it, and a CUDA device is
    chosen by thread. It waits in one place, so an iteration wakes one thread of this process. While a device works, the
    thread looks again and again for the next order and for the end of the work: either is to be seen at once.
    """

    def __init__(self, start: Callable[[bytes, list[bytes]], Started[bytes]], finish: bool = False) -> None:
        """`start` gets the packed iteration and the packed results since the last one; it starts it, and the packed
        result comes. `finish`: a call goes after all orders that have come, since another rank may wait for this one in
        each."""
        self._start = start
        self._running: deque[Started[bytes]] = deque()  # orders without an answer, oldest first
        self._finish = finish
        self._calls: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._owner: socket.socket | None = None
        self._frames = Frames()
        self._torn = False  # whether the owner has a part of an answer only
        self._listener: socket.socket | None = None
        self._secret = b""
        self._strangers: dict[int, tuple[socket.socket, bytes]] = {}  # by descriptor, with what they have sent
        start_thread(self._live, "engine")

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread of the engine, after the order that it obeys, or with `finish` after all that have
        come. Returns or raises what it does."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)

        self._calls.append(run)
        os.eventfd_write(self._wake, 1)
        return outcome.result()

    def tell(self, answer: Answer) -> None:
        """Send this to the owner, if there is one, between two answers to its orders."""
        self.call(lambda: None if self._torn else self._send(framed(answer)))

    # --- in the thread: for calls ----------------------------------------------------------------------------

    def dismiss(self, reason: str) -> None:
        """End the owner's channel with StaleEpoch. Orders that have not been read do not run, and those that run have
        ended, without an answer: the owner could commit nothing of them."""
        for started in self._running:
            try:
                started.result()
            except Exception:
                log.exception("an iteration failed")
        self._end(Answer(None, reason, stale=True))
        self._close_door()

    def open(self, host: str) -> Door:
        """Wait for one owner: on `host`, or for processes of this user on this node if `host` is empty."""
        assert self._owner is None
        self._close_door()
        self._secret = secrets.token_bytes(SECRET_BYTES)
        if host:
            self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
            name = str(self._listener.getsockname()[1])
        else:
            name = f"orca-engine-{secrets.token_hex(8)}"
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(f"\0{name}")  # an abstract address, which leaves no file behind
            self._listener.listen()
        self._listener.setblocking(False)
        self._poll.register(self._listener, select.POLLIN)
        return Door(host, name, self._secret)

    # --- in the thread ---------------------------------------------------------------------------------------

    def _live(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll(0 if self._running else None):
                if descriptor == self._wake:
                    if self._finish and self._owner:
                        self._read_orders(self._owner)
                    self._answer_calls()
                elif self._owner and descriptor == self._owner.fileno():
                    self._read_orders(self._owner)
                elif self._listener and descriptor == self._listener.fileno():
                    self._accept(self._listener)
                elif descriptor in self._strangers:
                    self._read_secret(descriptor)
            self._answer()

    def _answer_calls(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._calls:
            self._calls.popleft()()

    def _read_orders(self, owner: socket.socket) -> None:
        try:
            data = owner.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop_owner()
            return
        for frame in self._frames.feed(data):
            self._obey(unpack(Order, frame))
            if self._calls and not self._finish:
                self._answer_calls()
            if self._owner is not owner:
                return

    def _obey(self, order: Order) -> None:
        with self._ending():
            try:
                self._running.append(self._start(order.iteration, order.missed))
            except Exception:
                self._answer(wait=True)  # requests that get a token now are not suspected
                raise
        self._answer()

    def _answer(self, wait: bool = False) -> None:
        """Answer the orders that are done; all that run, if the thread is to wait for them."""
        while self._running and (wait or self._running[0].done()):
            with self._ending():
                started = self._running.popleft()
                self._send(framed(Answer(started.result())))

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """What is raised within ends the owner's channel."""
        try:
            yield
        except StaleEpoch as error:
            self._end(Answer(None, str(error), stale=True))
        except Exception:  # the state of the engine is unknown; its owner kills it
            log.exception("an iteration failed")
            self._end(Answer(None, traceback.format_exc()))

    def _send(self, data: bytes) -> None:
        """Send to the owner. Calls are answered while it does not read: it may be stopped, and have a successor."""
        owner, rest = self._owner, memoryview(data)
        while self._owner is owner and owner is not None:
            try:
                rest = rest[owner.send(rest) :]
                self._torn = bool(rest)
            except BlockingIOError:
                waiting = select.poll()
                waiting.register(owner, select.POLLOUT)
                waiting.register(self._wake, select.POLLIN)
                if self._wake in dict(waiting.poll()):
                    self._answer_calls()
            except OSError:
                self._drop_owner()
            if not rest:
                return

    def _end(self, last: Answer) -> None:
        """Close the owner's channel, if there is one, with a last word that can be sent at once."""
        if self._owner is None:
            return
        if not self._torn:
            with contextlib.suppress(OSError):  # without it, it still sees the end of the channel
                self._owner.send(framed(last))
        self._drop_owner()

    def _drop_owner(self) -> None:
        assert self._owner is not None
        self._forget(self._owner)
        self._running.clear()  # nobody waits for the answers
        self._owner, self._frames, self._torn = None, Frames(), False

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it has gone
            return
        try:
            prepare(connection)
        except OSError as error:
            log.warning("a connection is refused: %s", error)
            connection.close()
            return
        if len(self._strangers) == MAX_STRANGERS:
            self._drop_stranger(next(iter(self._strangers)))
        self._strangers[connection.fileno()] = connection, b""
        self._poll.register(connection, select.POLLIN)

    def _read_secret(self, descriptor: int) -> None:
        connection, sent = self._strangers[descriptor]
        try:
            data = connection.recv(SECRET_BYTES - len(sent))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        sent += data
        if data and len(sent) < SECRET_BYTES:
            self._strangers[descriptor] = connection, sent
        elif hmac.compare_digest(sent, self._secret):
            del self._strangers[descriptor]
            self._close_door()
            self._owner = connection
        else:
            self._drop_stranger(descriptor)

    def _drop_stranger(self, descriptor: int) -> None:
        connection, _ = self._strangers.pop(descriptor)
        self._forget(connection)

    def _close_door(self) -> None:
        for descriptor in list(self._strangers):
            self._drop_stranger(descriptor)
        if self._listener:
            self._forget(self._listener)
            self._listener = None

    def _forget(self, connection: socket.socket) -> None:
        self._poll.unregister(connection)
        connection.close()
