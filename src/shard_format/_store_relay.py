"""Object stores in a process that was forked after obstore was used: another process makes the calls.

obstore's threads do not exist in a forked process, and a call would wait for them for ever. So a forked process that
needs a store starts a fresh Python, which makes the calls and ends when its starter does. Several threads may call at
once; answers come as they are ready.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.spawn import get_executable
from typing import TYPE_CHECKING, Any, TypeVar

from shard_format._remote_source import StoreError
from shard_format.executors import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

_THREADS = 16


class Relay:
    """The process that calls obstore for this one.

    Owns: that process, the socket to it, and a thread that takes its answers.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            program = f"import sys; sys.path[:] = {sys.path!r}; from shard_format._store_relay import serve; serve({theirs.fileno()})"
            self._process = subprocess.Popen(
                [os.fsdecode(get_executable() or sys.executable), "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt from the keyboard is not for it
            )
        self._connection = Connection(ours.detach())
        self._sending = threading.Lock()
        self._numbers = count()
        self._waiting: dict[int, Future[Any]] = {}
        self.has_ended = False
        threading.Thread(target=self._receive, daemon=True).start()

    def call(self, work: Callable[[], Result]) -> Result:
        """What the work, which must pickle, returns or raises in that process."""
        answer: Future[Result] = Future()
        with self._sending:
            number = next(self._numbers)
            self._waiting[number] = answer
            try:
                self._connection.send((number, work))
            except OSError:
                self._end()
        try:
            return answer.result()
        finally:
            del answer  # the traceback of its error has this frame

    def _receive(self) -> None:
        try:
            while True:
                number, value, failure = self._connection.recv()
                answer = self._waiting.pop(number)
                if failure is None:
                    answer.set_result(value)
                else:
                    answer.set_exception(failure.cause)
                del answer, value, failure  # while this thread waits for the next one
        except (EOFError, OSError):
            self._end()

    def _end(self) -> None:
        self.has_ended = True
        for number in list(self._waiting):
            answer = self._waiting.pop(number, None)
            if answer is not None:
                answer.set_exception(
                    StoreError(errno.EPIPE, "the process that reads object stores has ended")
                )


_relay: Relay | None = None
_starting = threading.Lock()


def relay() -> Relay:
    """The relay of this process, started when it is needed first."""
    global _relay
    with _starting:
        if _relay is None or _relay.has_ended:
            _relay = Relay()
        return _relay


def _forget() -> None:
    global _relay, _starting
    _relay, _starting = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def serve(descriptor: int) -> None:
    """Makes the calls that come through a socket until its other end is closed."""
    connection = Connection(descriptor)
    sending = threading.Lock()

    def answer(number: int, work: Callable[[], Any]) -> None:
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - raised in the process that asked
            failure = Failure.of(error).to_send()
        with sending:
            connection.send((number, value, failure))

    with ThreadPoolExecutor(_THREADS) as threads:
        while True:
            try:
                request = connection.recv()
            except (EOFError, OSError):
                return
            threads.submit(answer, *request)
