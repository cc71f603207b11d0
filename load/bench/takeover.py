"""Engines that are killed, and the spares that take them over, as in the product, but without Ray: this process is
their scheduler and their clients. Each engine is a process of its own that obeys calls over a pipe."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import statistics
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from load.bench.bench import Bench, PartResult
from load.report import table
from services.engine.engine import Engine
from services.engine.families.config import load_config
from services.engine.settings import EngineSettings
from services.engine.startup import devices
from services.engine.startup.shared_memory import SharedMemory
from services.engine.warm_up import WarmUp
from services.engine.weights.random_tensors import RandomTensors
from services.messages import Claim, Iteration, IterationResult
from services.requests import SamplingParams
from services.scheduling import Knobs, Scheduler

# a process is started in no time by a fork, but CUDA works only where no process before it has called it
STARTS: dict[str, Any] = {
    "cpu": multiprocessing.get_context("forkserver"),
    "cuda": multiprocessing.get_context("spawn"),
}
STARTS["cpu"].set_forkserver_preload(["load.bench.takeover", "transformers.models.llama.modeling_llama"])
BUILD = "bench"
PATIENCE = 120.0  # seconds for an answer
PROMPT, LONG = 512, 4096  # tokens, or less where the model takes less
BETWEEN = 12  # iterations before each kill
AFTER = 24  # tokens of each stream beyond those of the kills
END = 5.0  # seconds in which a killed process must be gone
WATCH = 0.5  # seconds in which the blocks of a dead process must not change
KNOBS = Knobs(max_batch_size=128, token_budget=8192, prefix_caching=True)


# --- an engine process --------------------------------------------------------------------------------------------


class Member:
    """One of the processes. Each method is a call."""

    def __init__(self, folder: Path, settings: EngineSettings, random_weights: bool) -> None:
        self._folder, self._settings = folder, settings
        self._device = devices.choose_device(settings)
        self._memory = SharedMemory(BUILD)
        self._engine: Engine
        dtype = devices.choose_dtype(settings, self._device)
        self._tensors = RandomTensors(load_config(folder), dtype, self._device) if random_weights else None

    def load(self) -> tuple[str, Any, int]:
        """Load the weights. Returns where the memory is, the engine's figures, and the bytes of the device that are in
        it."""
        self._engine = Engine.load(self._folder, self._settings, tensors=self._tensors, memory=self._memory)
        WarmUp(self._engine).run()
        return self._memory.path, self._engine.figures, self._memory.device_bytes

    def hold(self, path: str) -> dict[str, float]:
        """Become the spare of the engine whose memory is at `path`. Returns seconds."""
        began = time.perf_counter()
        devices.open_device(self._device)
        opened = time.perf_counter()
        assert self._memory.hold(path), "the memory is not given"
        held = time.perf_counter()
        engine = Engine.adopt(self._folder, self._settings, 0, self._memory, self._tensors)
        assert engine, "there is nothing to adopt"
        self._engine = engine
        adopted = time.perf_counter()
        WarmUp(engine).run()
        ready = time.perf_counter()
        return {"context": opened - began, "hold": held - opened, "adopt": adopted - held, "warm-up": ready - adopted}

    def take_over(self) -> tuple[str, dict[int, bytes], dict[str, float]]:
        """Where the memory is now, the names of its blocks, and seconds."""
        began = time.perf_counter()
        assert self._memory.end_maker(END), "the dead process is not gone"
        assert self._memory.sound, "the device had a fault"
        ended = time.perf_counter()
        self._memory.rest()
        self._engine.recall()
        seconds = {"its end": ended - began, "recall": time.perf_counter() - ended}
        return self._memory.path, self._engine.block_names, seconds

    def watch(self) -> dict[str, Any]:
        """Whether the blocks change that the dead process was writing, before its end is known and after; and the free
        memory then."""
        blocks = torch.tensor(self._engine._record.unknown(), device=self._device)

        def contents() -> list[torch.Tensor]:
            cache = self._engine._cache
            found = [store.index_select(0, blocks) for store in (cache.keys[0], cache.keys[-1], cache.values[-1])]
            devices.finish(self._device)
            return found

        def changed(before: list[torch.Tensor], now: list[torch.Tensor]) -> bool:
            bits = torch.uint8
            return not all(torch.equal(a.view(bits), b.view(bits)) for a, b in zip(before, now, strict=True))

        first, free = contents(), [self.memory()[0]]
        assert self._memory.end_maker(END), "the dead process is not gone"
        at_end = contents()
        free.append(self.memory()[0])
        time.sleep(WATCH)
        later = contents()
        free.append(self.memory()[0])
        return {
            "blocks": len(blocks),
            "changed before the end is known": changed(first, at_end),
            "changed afterwards": changed(at_end, later),
            "free bytes: sockets closed, end known, later": free,
        }

    def memory(self) -> tuple[int, int]:
        """Free bytes of the device, and all, as the driver counts them; zeros on a CPU."""
        return torch.cuda.mem_get_info(self._device) if self._device.type == "cuda" else (0, 0)

    def reset(self, epoch: str) -> None:
        self._engine.reset(epoch)

    def run(self, iteration: Iteration) -> IterationResult:
        with self._memory.iteration():
            return self._engine.run(iteration)


def serve(pipe: Connection, arguments: tuple[Any, ...]) -> None:
    member = Member(*arguments)
    pipe.send(None)
    with contextlib.suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            try:
                pipe.send(getattr(member, name)(*arguments))
            except Exception:
                pipe.send(RuntimeError(f"{name}: {traceback.format_exc()}"))


# --- their scheduler ----------------------------------------------------------------------------------------------


class Process:
    """A member, in a process of its own."""

    def __init__(self, device: str, *arguments: Any) -> None:
        self.started = time.perf_counter()
        self._pipe, theirs = STARTS[device].Pipe()
        self._process = STARTS[device].Process(target=serve, args=(theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, name: str, *arguments: Any) -> Any:
        self.send(name, *arguments)
        return self.answer()

    def send(self, name: str, *arguments: Any) -> None:
        self._pipe.send((name, arguments))

    def answer(self) -> Any:
        """Raises EOFError or ConnectionResetError if the process dies, and what the call raised."""
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError(f"a process did not answer within {PATIENCE:g} s")
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self) -> float:
        """Returns the time."""
        now = time.perf_counter()
        self._process.kill()
        return now

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


@dataclass
class Streams:
    """Requests and what their clients have received."""

    prompts: dict[str, list[int]]
    lengths: dict[str, int]
    outputs: dict[str, list[int]] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)  # of the tokens
    ended: set[str] = field(default_factory=set)

    def claim(self, id: str) -> Claim:
        number = list(self.prompts).index(id)
        sampling = SamplingParams(self.lengths[id], temperature=0.8, top_p=0.95, seed=number + 1, ignore_eos=True)
        return Claim(id, float(number), self.prompts[id], list(self.outputs.setdefault(id, [])), sampling)

    def gaps(self, since: float) -> list[float]:
        """The seconds that each stream has waited over this time."""
        found = []
        for times in self.times.values():
            before, after = [t for t in times if t <= since], [t for t in times if t > since]
            if before and after:
                found.append(after[0] - before[-1])
        return sorted(found)


class Owner:
    """A scheduler that owns an engine process and serves these streams, some of them from the beginning."""

    def __init__(
        self, process: Process, figures: Any, number: int, names: dict[int, bytes], streams: Streams, ids: list[str]
    ) -> None:
        self._process, self._streams = process, streams
        epoch = f"{number}:bench"
        process.call("reset", epoch)
        self._scheduler = Scheduler(epoch=epoch, figures=figures, knobs=KNOBS, cached_blocks=names)
        self.add(ids)
        self.increments: list[float] = []  # seconds of iterations without prompts
        self.computed = 0  # tokens of the first iteration

    def add(self, ids: list[str]) -> None:
        self._scheduler.add([self._streams.claim(id) for id in ids if id not in self._streams.ended])

    def iterate(self) -> bool:
        """Returns whether there was anything to do."""
        began, iteration = time.perf_counter(), self._start()
        if iteration is None:
            return False
        result = self._process.answer()
        now = time.perf_counter()
        self.computed = self.computed or sum(iteration.scheduled.values())
        if not iteration.new and max(iteration.scheduled.values()) == 1:
            self.increments.append(now - began)
        assert not result.failed, f"{result.failed}"
        for id in result.tokens:
            self._streams.times.setdefault(id, []).append(now)
        self._scheduler.update(result)
        return True

    def kill(self, after: float) -> tuple[float, float]:
        """Kill the engine so many seconds into an iteration. Returns when, and when that was noticed."""
        assert self._start(), "nothing is left to do"
        time.sleep(after)
        killed = self._process.kill()
        try:
            while True:
                self._process.answer()  # the iteration may have ended
        except (EOFError, OSError):
            return killed, time.perf_counter()

    def _start(self) -> Iteration | None:
        iteration = self._scheduler.select()
        if iteration:
            self._process.send("run", iteration)
        for commit in self._scheduler.take_commits():
            self._streams.outputs[commit.id] += commit.tokens
            if commit.end:
                self._streams.ended.add(commit.id)
        return iteration


class Takeovers:
    """The part of the bench. `found` grows as it is measured."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self._scale, self._device = bench.scale, bench.device
        self._arguments = folder, bench.settings, bench.folder is None
        self._vocabulary = bench.config.vocab_size
        longest = bench.plan.max_model_len or bench.config.max_position_embeddings
        self._tokens = BETWEEN * (self._scale.kills + 1) + AFTER
        self._long = min(LONG, longest - AFTER)
        self._prompt = min(PROMPT, longest - self._tokens)
        self.found: dict[str, Any] = {"kernel": os.uname().release, "kills": []}
        self._epoch = 0
        self._figures: Any

    def run(self) -> None:
        with self._processes(self._scale.kills + 2) as processes:
            deadline = time.monotonic() + self._scale.takeover_seconds
            engine = next(processes)
            began = time.perf_counter()
            path, self._figures, shared = engine.call("load")
            free, total = engine.call("memory")
            self.found |= {"loading": time.perf_counter() - began, "numerics": self._figures.numerics}
            self.found |= {
                "blocks": self._figures.num_blocks,
                "bytes shared": shared,
                "bytes free beside the engine": free,
            }
            self.found["bytes of the engine alone, and of this process"] = total - free - shared
            expected, self.found["increment alone"] = self._undisturbed(engine)
            assert path, "the weights are not in memory that outlives the process"
            spare, self.found["spare ready"] = self._spare(processes, path)
            self.found["bytes of the spare"] = free - engine.call("memory")[0]
            again, self.found["increment with a spare"] = self._undisturbed(engine)
            self.found["wrong with a spare"] = _wrong(again, expected)
            streams, owner = self._streams(), None
            try:
                for number in range(self._scale.kills):
                    if time.monotonic() > deadline:
                        break
                    if number:
                        spare, self.found["spare ready"] = self._spare(processes, path)
                    owner = owner or self._owner(engine, streams, {})
                    path, owner = self._kill(engine, spare, owner, streams, long=number % 4 == 1)
                    engine = spare
                while owner and owner.iterate():
                    pass
            finally:
                self.found["wrong"] = _wrong(streams, expected)
                self.found["lost"] = sorted(set(streams.outputs) - streams.ended)
            if time.monotonic() < deadline:
                spare, _ = self._spare(processes, path)
                self._watch(engine, spare)

    @contextlib.contextmanager
    def _processes(self, count: int) -> Iterator[Iterator[Process]]:
        """Processes that have imported all they need; their imports are no part of a takeover."""
        processes = [Process(self._device.type, *self._arguments) for _ in range(count)]
        try:
            for process in processes:
                process.answer()
            self.found["imports"] = time.perf_counter() - processes[0].started
            yield iter(processes)
        finally:
            for process in processes:
                process.end()

    def _spare(self, processes: Iterator[Process], path: str) -> tuple[Process, dict[str, float]]:
        spare = next(processes)
        return spare, spare.call("hold", path)

    def _streams(self) -> Streams:
        """The requests, of which those called `long` come beside the others."""
        drawn = random.Random(7)
        sizes = {f"{i}/0": (self._prompt, self._tokens) for i in range(self._scale.streams)}
        sizes |= {f"long-{i}/0": (self._long, AFTER // 2) for i in range(self._scale.kills)}
        prompts = {id: [drawn.randrange(self._vocabulary) for _ in range(size)] for id, (size, _) in sizes.items()}
        return Streams(prompts, {id: length for id, (_, length) in sizes.items()})

    def _owner(self, engine: Process, streams: Streams, names: dict[int, bytes], whole: bool = False) -> Owner:
        self._epoch += 1
        ids = [id for id in streams.prompts if whole or id in streams.outputs or not id.startswith("long")]
        return Owner(engine, self._figures, self._epoch, names, streams, ids)

    def _undisturbed(self, engine: Process) -> tuple[Streams, float]:
        """All requests, and the median seconds of iterations without prompts."""
        streams = self._streams()
        owner = self._owner(engine, streams, {}, whole=True)
        while owner.iterate():
            pass
        return streams, statistics.median(owner.increments)

    def _kill(self, engine: Process, spare: Process, owner: Owner, streams: Streams, long: bool) -> tuple[str, Owner]:
        """Kill the engine; the spare goes on with its streams. Returns its memory and its scheduler."""
        for _ in range(BETWEEN):
            owner.iterate()
        if long:  # its blocks are reused at once: the spare's scheduler takes free blocks in the same order
            owner.add([next(id for id in streams.prompts if id.startswith("long") and id not in streams.outputs)])
        part = statistics.median(owner.increments) / 2
        killed, noticed = owner.kill(2 * part if long else part)
        path, names, phases = spare.call("take_over")
        taken = time.perf_counter()
        successor = self._owner(spare, streams, names)
        attached = time.perf_counter()
        successor.iterate()
        done = time.perf_counter()
        gaps = streams.gaps(killed)
        self.found["kills"].append(
            {
                "in": "a long prompt" if long else "increments",
                "noticed": noticed - killed,
                **phases,
                "take over": taken - noticed,
                "attach": attached - taken,
                "first iteration": done - attached,
                "tokens in it": successor.computed,
                "blocks kept": len(names),
                "longest gap": gaps[-1] if gaps else None,
                "median gap": statistics.median(gaps) if gaps else None,
                "spare ready": dict(self.found["spare ready"]),
            }
        )
        return path, successor

    def _watch(self, engine: Process, spare: Process) -> None:
        """Kill an engine in a long prompt, and look whether its blocks change afterwards."""
        streams = self._streams()
        owner = Owner(engine, self._figures, self._epoch + 1, {}, streams, ["long-0/0"])
        owner.kill(self.found["increment alone"])
        self.found["watched"] = spare.call("watch")


def _wrong(streams: Streams, expected: Streams) -> list[str]:
    """The requests with other tokens, as far as they have come."""
    return [
        id
        for id, output in streams.outputs.items()
        if output != expected.outputs[id][: len(output)]
        or (id in streams.ended) != (len(output) == streams.lengths[id])
    ]


def takeover(bench: Bench) -> PartResult:
    """Eight kills of an engine under load, each after its spare is ready."""
    bench.release()
    with tempfile.TemporaryDirectory() as parent:
        folder = bench.folder or Path(parent) / bench.name
        if bench.folder is None:
            bench.config.save_pretrained(folder)
        takeovers = Takeovers(bench, folder)
        try:
            takeovers.run()
        except Exception:  # what was measured before must be told
            takeovers.found["failed"] = traceback.format_exc()
    return PartResult(_text(takeovers.found), takeovers.found)


def _text(found: dict[str, Any]) -> str:
    def shown(value: Any) -> str:
        if isinstance(value, float):
            return f"{1000 * value:,.1f} ms"
        if isinstance(value, dict):
            return ", ".join(f"{name} {shown(one)}" for name, one in value.items())
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

    kills = found["kills"]
    parts = []
    if kills:
        heads = [name for name in kills[0] if name != "spare ready"]
        parts.append(table(heads, [[shown(kill[name]) for name in heads] for kill in kills]))
        parts.append("\n".join(f"- spare {number}: {shown(kill['spare ready'])}" for number, kill in enumerate(kills)))
        gaps = [kill["longest gap"] for kill in kills if kill["longest gap"] is not None]
        if gaps:
            parts.append(f"{len(kills)} kills, longest gap {shown(max(gaps))}")
    rest = {name: value for name, value in found.items() if name not in ("kills", "failed", "spare ready")}
    parts.append("\n".join(f"- {name}: {shown(value)}" for name, value in rest.items()))
    if "failed" in found:
        parts.append(f"Failed:\n\n```\n{found['failed']}```")
    return "\n\n".join(parts)
