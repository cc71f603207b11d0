"""Links as on GPUs, with gloo in place of NCCL: two ranks in threads of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from rank_processes import HERE
from torch.distributed import TCPStore

from services.engine.engine import Engine
from services.engine.parallel import process_groups
from services.engine.parallel.layout import Layout
from services.engine.parallel.links import Links
from services.engine.parallel.process_groups import open_meeting
from services.engine.settings import EngineSettings
from services.engine.warm_up import iteration

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def gloo_for_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_groups, "_nccl", process_groups._gloo)


@pytest.fixture
def store() -> TCPStore:
    return open_meeting(HERE)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def link(store: TCPStore, threads: ThreadPoolExecutor) -> Callable[..., list[Links]]:
    def both(tp: int, epoch: str) -> list[Links]:
        def one(rank: int) -> Links:
            layout, meeting = Layout(tp, 2 // tp, rank), f"{HERE}:{store.port}"
            return Links(layout, HERE, meeting, epoch, lambda: False, CUDA)

        return list(threads.map(one, range(2)))

    return both


def test_sums(link: Callable[..., list[Links]], threads: ThreadPoolExecutor) -> None:
    """Also of bfloat16, which is summed in float32."""
    links = link(2, "e")
    for dtype in (torch.float32, torch.bfloat16):
        parts = [torch.randn(3, 5, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(2)]
        exact = parts[0].float() + parts[1].float()
        for total in threads.map(Links.all_reduce, links, [part.clone() for part in parts]):
            assert torch.equal(total, exact)
        for found in threads.map(Links.all_gather, links, parts):
            assert torch.equal(torch.stack(found), torch.stack(parts))
    assert list(threads.map(Links.least, links, [7, 5])) == [5, 5]
    end(links)


def test_from_stage_to_stage(link: Callable[..., list[Links]], threads: ThreadPoolExecutor) -> None:
    first, last = link(1, "e")
    sent = [torch.randn(4, 6) for _ in range(3)]
    sending = threads.submit(lambda: [first.send(x) for x in sent])
    for x in sent:
        last.receive(found := torch.empty(4, 6))
        assert torch.equal(found, x)
    sending.result()
    end([first, last])


@pytest.mark.parametrize("tp", [1, 2])
def test_a_waiting_rank_gets_an_error_when_the_other_leaves(
    tp: int, link: Callable[..., list[Links]], threads: ThreadPoolExecutor
) -> None:
    """`check` raises too; the links of the next epoch are not disturbed."""
    leaving, waiting = link(tp, "e")
    x = torch.ones(2, 3)
    wait = threads.submit(waiting.all_gather if tp == 2 else waiting.receive, x)
    leaving.close()
    with pytest.raises(RuntimeError):
        wait.result()
    waiting._watch._thread.join()
    with pytest.raises(RuntimeError, match="another rank left"):
        waiting.check()
    waiting.close()
    end(link(tp, "f"))


def test_an_engine_checks_its_links_before_it_keeps_tokens(
    link: Callable[..., list[Links]], threads: ThreadPoolExecutor, tiny_model: Callable[[str], Path]
) -> None:
    """An aborted kernel raises nothing, and its output is undefined."""
    settings = EngineSettings("cpu", "float32", block_size=4, kv_blocks=8, threads=1, tp=2)
    engines = [Engine.load(tiny_model("llama"), settings, rank) for rank in range(2)]
    links = link(2, "e")
    list(threads.map(Engine.link, engines, links))
    first = iteration("e", engines[0].warm_up_blocks)
    for engine in engines:
        engine.reset("e")
    whole, _ = threads.map(Engine.run, engines, [first, first])
    assert list(whole.tokens) == list(first.scheduled)
    links[0]._over = True  # as the watch sets it before it aborts
    for engine in engines:
        engine.reset("e")
    running = [threads.submit(engine.run, first) for engine in engines]
    with pytest.raises(RuntimeError, match="another rank left"):
        running[0].result()
    running[1].result()
    for one in links:
        one.close()


def end(links: list[Links]) -> None:
    """None has left before."""
    for one in links:
        one.check()
    for one in links:
        one.close()
