"""OpenAI's own client, with its own retries, while HAProxy and the head of Ray are killed."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from load.server import OrcaServer

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(300)]

CLIENTS = 6
MORE = 3  # answers of each client before, between and after the faults


class Asker:
    """Sends the same request again and again, like a user who does not know of the faults."""

    def __init__(self, client: openai.OpenAI, number: int) -> None:
        self._client, self._number = client, number
        self._model = client.models.list().data[0].id
        self.answers: list[str] = []
        self.arrived = threading.Semaphore(0)
        self.stop = threading.Event()

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.answers.append(self._ask())
                self.arrived.release()
        finally:
            self.arrived.release(1000)  # no thread waits for answers that will not arrive

    def _ask(self) -> str:
        answer = self._client.completions.create(
            model=self._model,
            prompt=f"{self._number} is a number that",
            max_tokens=30,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 30
        return answer.choices[0].text


def test_it_gets_all_answers_although_haproxy_and_the_head_die(tmp_path: Path) -> None:
    with (
        OrcaServer(tmp_path, "--dtype", "float32") as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=10) as client,
        ThreadPoolExecutor(CLIENTS) as threads,
    ):
        askers = [Asker(client, number) for number in range(CLIENTS)]
        running = [threads.submit(asker.run) for asker in askers]
        try:
            _more(askers)
            for name in ("haproxy", "gcs_server"):
                for pid in server.cluster(name):
                    os.kill(pid, signal.SIGKILL)
                _more(askers)
        finally:
            for asker in askers:
                asker.stop.set()
        for asker, run in zip(askers, running, strict=True):
            run.result()
            assert set(asker.answers) == {asker.answers[0]}


def _more(askers: list[Asker]) -> None:
    for asker in askers:
        for _ in range(MORE):
            asker.arrived.acquire()
