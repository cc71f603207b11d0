"""Engine: a loaded model that runs one iteration after another (paper, section 4)."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from services.engine.adapters import Adapters
from services.engine.batch.block_names import BYTES, BlockNames, BlockRecord
from services.engine.batch.buffers import Allocate, zeros
from services.engine.batch.flat_batch import FlatBatch, Packer
from services.engine.batch.grammars import GrammarCompiler, OutputGrammar, load_grammars
from services.engine.batch.kv_cache import KVCache
from services.engine.batch.request_state import RequestState, RequestStates
from services.engine.decoder import Decoder
from services.engine.parallel.decoder import RankDecoder
from services.engine.parallel.layout import Layout
from services.engine.parallel.links import Links
from services.engine.sampling.output import Draw, SamplerOutput
from services.engine.sampling.pooler import Pooler
from services.engine.sampling.prompt_logprobs import PromptScorer
from services.engine.sampling.sampler import Sampler
from services.engine.settings import (
    LARGEST_BLOCK,
    EngineSettings,
    check_deadly,
    choose_block_size,
    count_warm_up_blocks,
    features_of,
)
from services.engine.startup import devices, huge_pages, loading
from services.engine.startup.huge_pages import BlockPages
from services.engine.startup.rehearsal import largest_of, rehearse
from services.engine.startup.shared_memory import Contents, SharedMemory
from services.engine.weights.tensors import Tensors
from services.errors import StaleEpoch
from services.messages import EngineFigures, Iteration, IterationResult
from services.models.info import ModelInfo, choose_length
from services.models.pooling import Method
from services.started import Started

log = logging.getLogger(__name__)


NOTHING = Draw(Started(lambda: True, SamplerOutput))  # of an iteration or a rank that samples nothing


@dataclass(slots=True)
class RunningIteration:
    """An iteration whose result may not be here."""

    iteration: Iteration
    began: float
    batch: FlatBatch | None = None  # None: no request is computed
    draw: Draw = NOTHING
    failed: dict[str, str] = field(default_factory=dict)  # before anything was computed: why, by id
    result: IterationResult | None = None
    adapters: list[str] = field(default_factory=list)  # see IterationResult

    @property
    def needs_host(self) -> bool:
        """Whether the next iteration, of any requests, depends on what the host does with the result."""
        batch = self.batch
        return bool(self.iteration.wants_forced or (batch and (batch.scored_requests or any(batch.drafts))))


class Engine:
    """Runs the iterations that the scheduler decides, over a flat batch of all tokens, and samples the next tokens.

    Not thread-safe. `reset` must come before the first iteration.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        figures: EngineFigures,
        sampler: Sampler | Pooler,
        deadly: int,
        pages: BlockPages | None = None,
        method: Method = "last",
        adapters: Adapters | None = None,
    ) -> None:
        """`deadly`: see `check_deadly`. `pages`: what a cache in shared memory gets huge pages from. `method`: which
        rows a Pooler needs. `adapters`: None if requests can have none."""
        self.figures = figures
        self.decoder = decoder
        self.sampler = sampler
        self._pack = Packer(cache.block_size, method)
        search = sampler.search if isinstance(sampler, Sampler) else None
        self._scorer = PromptScorer(decoder, figures.vocab_size, search)
        self._cache = cache
        self._pages = pages
        self._adapters = adapters
        self._record = BlockRecord(cache.record.numpy())
        self._deadly = deadly
        self._epoch: str | None = None
        self._links: Links | None = None
        self._unknown: dict[int, list[RequestState]] = {}  # by step: requests that another rank samples for
        self._running: deque[RunningIteration] = deque()  # oldest first
        self._finished_at = 0.0  # when the last result was read
        self.recall()

    @classmethod
    def load(
        cls,
        folder: Path,
        settings: EngineSettings,
        rank: int = 0,
        tensors: Tensors | None = None,
        memory: SharedMemory | None = None,
    ) -> Engine:
        """The engine of the model in `folder`, a transformers folder with safetensors; or one of its ranks, which must
        be linked to the others before it runs. With `tensors`, the weights come from there. With `memory`, weights and
        KV cache are those that another process has left there, if it had the same; else they are put there, if this
        machine can do that.

        Raises ModelError for a model that cannot be read or served, SettingsError for settings that do not fit it.
        """
        engine = cls._make(folder, settings, rank, tensors, memory, adopts_only=False)
        assert engine
        return engine

    @classmethod
    def adopt(
        cls, folder: Path, settings: EngineSettings, rank: int, memory: SharedMemory, tensors: Tensors | None = None
    ) -> Engine | None:
        """The engine whose weights and KV cache another process of the same rank has put into `memory`; None if there
        are none. `tensors`: as in `load`; none is read. That process may go on; after its end, and before the first
        request, `recall` must be called. Until then only the reserved blocks may be written.
        """
        return cls._make(folder, settings, rank, tensors, memory, adopts_only=True)

    @classmethod
    def _make(
        cls,
        folder: Path,
        settings: EngineSettings,
        rank: int,
        tensors: Tensors | None,
        memory: SharedMemory | None,
        adopts_only: bool,
    ) -> Engine | None:
        """See `load` and `adopt`."""
        devices.set_threads(settings)
        devices.forbid_shortcuts()
        devices.keep_kernels(settings.cache_dir)
        device = devices.choose_device(settings)
        dtype = devices.choose_dtype(settings, device)
        info = ModelInfo.load(folder, settings.cache_dir)
        pooling = info.pooling
        length = choose_length(info.max_model_len, settings.max_model_len)
        layout = Layout(settings.tp, settings.pp, rank)
        load = partial(loading.load_decoder, folder, settings, length, layout, tensors)
        make = partial(_make_cache, settings, info, length)
        with devices.fitting(device):  # all of it, so that what this process takes is never counted as others'
            contents = None
            if memory and loading.runs_on_fast_path(folder, settings):
                identity = f"{info.revision} {length} {_libraries()} torch-{torch.__version__} {settings!r} {layout!r}"
                identity = f"{identity} {pooling!r} {torch.get_num_threads()} threads {devices.serial(device)}"
                contents = _found(memory, identity)
                if not contents and not adopts_only:
                    contents = _share(memory, identity, load, make, device)
            if contents:
                decoder, cache = contents
                pages = BlockPages([*cache.keys, *cache.values]) if device.type == "cpu" else None
            elif adopts_only:
                return None
            else:
                decoder = load(zeros)
                cache, pages = make(decoder, zeros), None
            decoder.bind(cache)
        if device.type == "cuda":
            devices.free_unused()  # what only loading needed
        adapters = None
        if settings.adapters and decoder.adapters and not pooling:
            read = loading.adapter_reader(folder, settings, length, layout, tensors)
            adapters = Adapters(decoder.adapters, read, settings.adapter_bytes)
        elif settings.adapters:
            log.warning("LoRA adapters are not computed by %s; requests with one wait for other engines", decoder.path)
        computed = f"{_formats(settings, dtype)} {devices.name(device)} {decoder.path}"
        if pooling:
            computed += f" pooling-{hashlib.sha256(repr(pooling).encode()).hexdigest()[:8]}"
        figures = EngineFigures(
            model=info.name,
            max_model_len=length + 1 if pooling else length,  # a vector is an output token
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            vocab_size=info.vocab_size,
            numerics=f"{info.revision} {_libraries()} {computed}",
            weights="" if tensors else loading.describe_weights(folder, settings, decoder),
            weight_bytes=decoder.memory,
            features=features_of(info, adapters is not None),
            whole_prompts=pooling is not None and pooling.whole,
            vector=pooling.size if pooling else 0,
            verifies_drafts=pooling is None and isinstance(decoder, RankDecoder),
            largest=largest_of(length if pooling and pooling.whole else 0) if device.type == "cuda" else None,
        )
        log.info("weights: %s", figures.weights)
        deadly = settings.deadly_token
        if pooling:
            return cls(decoder, cache, figures, Pooler(pooling, folder), deadly, pages, pooling.method)
        grammars = GrammarCompiler(partial(load_grammars, folder, info), info.vocab_size) if layout.samples else None
        sampler = Sampler(info.eos_token_ids, info.vocab_size, loading.search_of(settings, device), grammars)
        return cls(decoder, cache, figures, sampler, deadly, pages, adapters=adapters)

    def link(self, links: Links) -> None:
        """Link this rank to the others, which must call this too. `num_blocks` becomes the smallest of all ranks'."""
        assert isinstance(self.decoder, RankDecoder)
        self.decoder.links = self._links = links
        self.figures = replace(self.figures, num_blocks=links.least(self._cache.num_blocks))

    @property
    def memory(self) -> int:
        """Bytes of weights and KV blocks."""
        return self.figures.weight_bytes + sum(store.nbytes for store in self._cache.stores)

    @property
    def busy(self) -> bool:
        """Whether an iteration was started of which no result has been read."""
        return bool(self._running)

    @property
    def block_names(self) -> dict[int, bytes]:
        """The names of the full blocks that the next owner can use (see `BlockNames`)."""
        return self._names.as_dict()

    @property
    def warm_up_blocks(self) -> list[int]:
        """Blocks that no user's request gets. The warm-up uses them, since the next owner may use what others hold."""
        return self._cache.reserved_blocks

    def recall(self) -> None:
        """Learn anew what is in the blocks, which another process may have written until now. Forgets all requests."""
        self._requests = RequestStates(self.figures.block_size, self._record.unknown())
        self._names = BlockNames(self.figures.block_size, self._record)

    def reset(self, epoch: str) -> None:
        """Forget all requests, and keep the full blocks. From now on only iterations of `epoch` run, and none of an
        earlier one writes any more. Raises what such an iteration raised on the device."""
        self._finish(0)
        self._requests.clear()
        self._unknown.clear()
        self._epoch = epoch

    def run(self, iteration: Iteration, earlier: Iterable[IterationResult] = ()) -> IterationResult:
        """Run one iteration: the result of `start`."""
        return self.start(iteration, earlier).result()

    def start(self, iteration: Iteration, earlier: Iterable[IterationResult] = ()) -> Started[IterationResult]:
        """Start an iteration. Raises StaleEpoch, and changes nothing, if its epoch is not that of the last `reset`.

        On a device, this returns when the work is launched, behind that of the iteration before: a token that the host
        does not know is taken on the device from where it was sampled. Only iterations for which that cannot be (see
        `RequestState.runs_ahead`) wait for the one before. A fault of the device is raised by a later call. Results
        are asked for in any order, and come in that of the iterations.

        A request that fails is in `failed` and is left out until it is released; the others continue. A rank that does
        not sample must get in `earlier` all results since its last call, and its own result has no tokens. Raises
        RuntimeError if another rank is gone. When there is a result, the device has done the iteration: the blocks that
        it has filled may be named.
        """
        began = time.perf_counter()
        if iteration.epoch != self._epoch:
            raise StaleEpoch(f"iteration of epoch {iteration.epoch!r}, the engine's is {self._epoch!r}")
        self._learn(earlier)
        if self._running:
            waits = any(one.unknown and not one.runs_ahead for one in self._requests.known(iteration.scheduled))
            self._finish(0 if waits else 1)
        self._names.begin(iteration)
        if self._pages:
            for blocks in iteration.new_blocks.values():
                self._pages.back(blocks)
        dirty = self._requests.apply(iteration)
        if dirty and self.decoder.reads_past_end:  # 0 * NaN is NaN, also behind a mask
            self._cache.erase(dirty)
        if iteration.sleep:
            self._give_back()
        for new in iteration.new:
            if isinstance(self.sampler, Sampler):
                self.sampler.begin(self._requests[new.id])
        before, running = time.perf_counter(), RunningIteration(iteration, began)
        self._load_adapters(running)
        running.began += time.perf_counter() - before  # schedulers learn what an iteration takes that reads none
        if scheduled := self._requests.scheduled(iteration):
            self._launch(running, scheduled)
        self._running.append(running)
        if running.draw.tokens is None or self._links or running.needs_host:
            self._finish(0)
        return Started(lambda: running.result is not None or running.draw.output.done(), lambda: self._result(running))

    def _give_back(self) -> None:
        """Give the memory of the KV cache back. No request is left. On a GPU it stays, with what is in it."""
        if self._cache.device.type != "cpu":
            return
        assert not len(self._requests), f"{len(self._requests)} requests are here"
        self._finish(0)
        self._names.clear()  # first: another process may take over at any moment
        shared = self._pages is not None
        if all(huge_pages.give_back(store.data_ptr(), store.nbytes, shared) for store in self._cache.stores):
            self._cache.begin_anew()
        else:
            log.warning("the memory of the KV cache is not given back: the kernel refuses")
        self.recall()
        if self._pages:
            self._pages.forget()

    def _load_adapters(self, running: RunningIteration) -> None:
        """Have the adapters of new requests in memory, and begin to read others. A request whose adapter cannot be read
        fails."""
        iteration, failed = running.iteration, running.failed
        for new in iteration.new:
            digest, state = new.sampling.adapter, self._requests[new.id]
            if not digest:
                continue
            assert self._adapters, f"{new.id}: this engine has no adapters"
            is_new = digest not in self._adapters
            error = self._adapters.need(digest)
            if is_new and self._links and not self._links.least(int(not error)) and not error:
                error = f"another rank cannot read the adapter {digest[:12]}"
                self._adapters.drop(digest)
            if error:
                state.failed, failed[new.id] = True, error
                self._names.fail(self._requests.own_blocks(state))
        if self._adapters:
            if iteration.new:
                self._adapters.shrink(self._requests.adapters)
            there = self._adapters.read_ahead(iteration.adapters)
            running.adapters = there if iteration.adapters else []

    def _launch(self, running: RunningIteration, scheduled: list[tuple[RequestState, int]]) -> None:
        iteration, tokens = running.iteration, self._running[-1].draw.tokens if self._running else None
        batch = running.batch = self._pack(scheduled, iteration.drafts, tokens)
        check_deadly(self._deadly, batch.input_ids)
        with torch.inference_mode():
            logits = self.decoder.forward(batch)
            if logits is not None:
                running.draw = self.sampler.draw(logits, batch.sampled, batch.drafts)
            if batch.scored_requests:
                self._scorer.score(batch)
        for state, count in scheduled:
            state.num_computed_tokens += count
        if logits is None:
            self._await(iteration.step, batch.sampled)
            return
        for row, state in enumerate(batch.sampled):
            state.unknown += 1
            state.row = row

    def _result(self, running: RunningIteration) -> IterationResult:
        while running.result is None:
            self._finish(len(self._running) - 1)
        return running.result

    def _finish(self, most: int) -> None:
        """Read the results of the oldest iterations, until at most so many run."""
        while len(self._running) > most:
            running = self._running[0]
            output = running.draw.output.result()
            if running.draw.tokens is None:  # by which the host knows that the device has done the iteration
                devices.finish(self._cache.device)
            if self._links:
                self._links.check()
            self._running.popleft()
            running.result = self._take(running, output)

    def _take(self, running: RunningIteration, output: SamplerOutput) -> IterationResult:
        """Give the requests of an iteration their tokens. Those that fail are not computed again; those that failed
        before have nothing."""
        batch, forced = running.batch, dict[str, list[int]]()
        if batch and running.draw is not NOTHING:
            if batch.drawn:
                check_deadly(self._deadly, [state.token_ids[-1] for state in batch.sampled])
            if batch.scored_requests:
                self._scorer.deliver(batch, output)
            for state in batch.sampled:
                state.unknown -= 1
                if state.failed:
                    output.drop(state.id)
                elif state.id in output.tokens:
                    state.append(output.tokens[state.id], output.more.get(state.id, ()))
                else:
                    state.failed = True
                    self._names.fail(self._requests.own_blocks(state))
            if running.iteration.wants_forced:
                forced = self._forced(batch.sampled, output)
        now = time.perf_counter()
        began, self._finished_at = max(running.began, self._finished_at), now
        return IterationResult(
            running.iteration.epoch,
            running.iteration.step,
            output.tokens,
            output.logprobs,
            output.failed | running.failed,
            now - began,
            output.more,
            output.more_logprobs,
            forced,
            running.adapters,
        )

    @staticmethod
    def _forced(states: list[RequestState], output: SamplerOutput) -> dict[str, list[int]]:
        """What follows the new tokens of requests whose grammars leave one text only."""
        grammars = ((s, s.grammar) for s in states if isinstance(s.grammar, OutputGrammar) and s.id in output.tokens)
        forced = ((state.id, grammar.forced(state.token_ids)) for state, grammar in grammars)
        return {id: tokens for id, tokens in forced if tokens}

    def _await(self, step: int, states: list[RequestState]) -> None:
        """Note that another rank samples for these requests. Until its result comes they count as failed: no iteration
        needs them before, and one that is released before may have failed."""
        self._unknown[step] = states
        for state in states:
            state.failed = True

    def _learn(self, earlier: Iterable[IterationResult]) -> None:
        """Append the tokens that another rank sampled."""
        for result in earlier:
            for state in self._unknown.pop(result.step, ()):
                if state.id in result.tokens:
                    state.append(result.tokens[state.id], result.more.get(state.id, ()))
                    state.failed = False


def _found(memory: SharedMemory, identity: str) -> Contents | None:
    """What another process has left in the memory, if there is something, and this process can map it."""
    try:
        return memory.restore(identity)
    except OSError as error:
        log.warning("the memory of the other process is not used: %s", error)
        return None


def _share(
    memory: SharedMemory,
    identity: str,
    load: Callable[[Allocate], Decoder],
    make: Callable[..., KVCache],
    device: torch.device,
) -> Contents | None:
    """What is put into the memory now. None, and an empty memory, if that cannot be done."""

    def beside_a_spare(decoder: Decoder, allocate: Allocate) -> KVCache:
        return make(decoder, allocate, memory.device_bytes)

    if device.type == "cuda" or huge_pages.available():
        try:
            return memory.fill(identity, load, beside_a_spare)
        except OSError as error:
            log.warning("weights and KV cache are not in shared memory, so they end with this process: %s", error)
    memory.release()
    return None


def _make_cache(
    settings: EngineSettings, info: ModelInfo, length: int, decoder: Decoder, allocate: Allocate, shared: int = 0
) -> KVCache:
    """The KV cache for a decoder of requests of up to `length` tokens, in memory of `allocate`. `shared`: bytes of the
    device that a spare shares with this process; 0 if there is no spare that uses the device."""
    device, dtype = devices.choose_device(settings), decoder.cache_dtype
    per_token = sum(layer.bytes(dtype) for layer in decoder.layers_in_memory)
    state = sum(state.bytes for state in decoder.states)
    size = choose_block_size(settings, per_token, state)
    if not (decoder.layers or decoder.states or settings.block_size):  # blocks hold nothing
        size = LARGEST_BLOCK
    taken = max(BYTES, size * per_token + state)
    free = devices.free_bytes(device)
    if device.type == "cpu" and settings.memory:
        free = max(0, settings.memory - settings.beside_model - settings.tp * settings.pp * decoder.memory)
    if device.type == "cuda" and not settings.kv_blocks:
        decoder.bind(KVCache(decoder.layers, 1, size, dtype, device, states=decoder.states))  # captures graphs, too
        needed = rehearse(decoder, size, length, info.vocab_size, info.pooling, device)
        free = devices.free_bytes(device) - needed - (settings.adapter_bytes if decoder.adapters else 0)
    if shared:
        free -= devices.process_bytes(device, shared)  # that a spare takes, too
    blocks = devices.count_blocks(settings, taken, size, length, free, device)
    reserved = count_warm_up_blocks(size)
    return KVCache(decoder.layers, blocks, size, dtype, device, reserved, allocate, decoder.states)


def _formats(settings: EngineSettings, dtype: torch.dtype) -> str:
    """The dtype of activations, and the format of keys and values if it is another one."""
    name, kept = str(dtype).removeprefix("torch."), settings.kv_cache_dtype
    return name if devices.choose_cache_dtype(settings, dtype) == dtype else f"{name} kv-{kept}"


def _libraries() -> str:
    """The versions of what masks of grammars depend on: llguidance; and tokenizers, which cuts a text into tokens where
    a grammar leaves no other.

    An engine without llguidance refuses grammars only, so its absence is no error here.
    """
    return " ".join(f"{name}-{_version(name)}" for name in ("llguidance", "tokenizers"))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
