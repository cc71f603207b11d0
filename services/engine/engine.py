"""Engine: a loaded model that runs one iteration after another (paper, section 4: the engine)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from services.engine.batch.flat_batch import pack
from services.engine.batch.kv_cache import KVCache, block_bytes
from services.engine.batch.request_state import Row, Rows
from services.engine.deadly import DeadlyToken
from services.engine.decoder import Decoder
from services.engine.families.weights import Tensors
from services.engine.parallel.decoder import RankDecoder
from services.engine.parallel.layout import Layout
from services.engine.parallel.links import Links
from services.engine.sampling.prompt_logprobs import Scorer
from services.engine.sampling.sampler import Sampled, Sampler
from services.engine.settings import EngineSettings
from services.engine.startup import devices, loading, memory
from services.errors import StaleEpoch
from services.messages import EngineFigures, Iteration, IterationResult
from services.models.info import ModelInfo


class Engine:
    """Runs what the scheduler decided, over a flat batch of all tokens, and draws the next tokens.

    Not thread-safe: one iteration at a time. It runs nothing before the first `reset`.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        figures: EngineFigures,
        sampler: Sampler,
        deadly: DeadlyToken,
    ) -> None:
        self.figures = figures
        self.decoder = decoder
        self.sampler = sampler
        self._scorer = Scorer(decoder, figures.vocab_size, sampler.search)
        self._cache = cache
        self._rows = Rows(figures.block_size)
        self._deadly = deadly
        self._epoch: str | None = None
        self._links: Links | None = None
        self._unknown: dict[int, list[Row]] = {}  # by step: whom another rank samples for

    @classmethod
    def load(cls, folder: Path, settings: EngineSettings, rank: int = 0, tensors: Tensors | None = None) -> Engine:
        """The engine of the model in `folder`, a transformers folder with safetensors; or one of its ranks, which runs
        nothing before it is linked to the others. With `tensors`, weights come from there; they are for one rank.

        Raises ModelError for a model that cannot be read or served, SettingsError for settings that do not fit it.
        """
        devices.set_threads(settings)
        device = devices.choose_device(settings)
        dtype = devices.choose_dtype(settings, device)
        info = ModelInfo.load(folder, settings.cache_dir)
        length = loading.choose_length(info.max_model_len, settings.max_model_len)
        layout = Layout(settings.tp, settings.pp, rank)
        decoder: Decoder = (
            loading.load_decoder(folder, settings, length, tensors)
            if layout.size == 1
            else loading.load_rank(folder, settings, length, layout)
        )
        sharing = decoder.sharing if isinstance(decoder, RankDecoder) else decoder.layers
        kept = block_bytes(sharing, settings.block_size, decoder.cache_dtype)
        blocks = memory.count_blocks(settings, kept, length, memory.free_bytes(device))
        figures = EngineFigures(
            model=info.name,
            max_model_len=length,
            num_blocks=blocks,
            block_size=settings.block_size,
            vocab_size=info.vocab_size,
            numerics=f"{info.revision} {str(dtype).removeprefix('torch.')} {device.type} {decoder.path}",
        )
        cache = KVCache(decoder.layers, blocks, settings.block_size, decoder.cache_dtype, device)
        decoder.bind(cache)
        sampler = Sampler(info.eos_token_ids, info.vocab_size, loading.search_of(settings, device))
        return cls(decoder, cache, figures, sampler, DeadlyToken(settings.deadly_token))

    def link(self, links: Links) -> None:
        """Be one of the ranks that are linked so, all of which are told. `figures` are the least of them all after."""
        assert isinstance(self.decoder, RankDecoder)
        self.decoder.links = self._links = links
        self.figures = replace(self.figures, num_blocks=links.least(self._cache.num_blocks))

    def reset(self, epoch: str) -> None:
        """Forget all requests and obey `epoch` from now on."""
        self._rows.clear()
        self._unknown.clear()
        self._epoch = epoch

    def run(self, iteration: Iteration, earlier: Iterable[IterationResult] = ()) -> IterationResult:
        """Run one iteration. Raises StaleEpoch, changing nothing, for one of another epoch than the last `reset`.

        A request that fails is in `failed`, and left out until it is released; the others go on. A rank that does not
        sample must be told in `earlier` all results since the last call, and its own has no tokens. Raises RuntimeError
        when another rank is gone.
        """
        started = time.perf_counter()
        if iteration.epoch != self._epoch:
            raise StaleEpoch(f"iteration of epoch {iteration.epoch!r}, the engine's is {self._epoch!r}")
        self._learn(earlier)
        if soiled := self._rows.apply(iteration):  # 0 * NaN is NaN, also behind a mask
            self._cache.erase(soiled)
        scheduled = self._rows.scheduled(iteration)
        result = Sampled()
        if scheduled:
            batch = pack(scheduled, self._cache.block_size)
            self._deadly.check(batch.input_ids)
            with torch.inference_mode():
                logits = self.decoder.forward(batch)
                if logits is not None:
                    result = self.sampler.sample(logits, batch.sampling)
                if batch.scoring:
                    self._scorer.score(batch)
                    self._scorer.hand_out(batch, result)
            if self._links:
                self._links.check()
            for row, count in scheduled:
                row.num_computed_tokens += count
            if logits is not None:
                self._keep(result)
            else:
                self._await(iteration.step, batch.sampling)
        return IterationResult(
            iteration.epoch,
            iteration.step,
            result.tokens,
            result.logprobs,
            result.failed,
            time.perf_counter() - started,
        )

    def _keep(self, result: Sampled) -> None:
        """Append the drawn tokens. What failed is not computed again."""
        for id, token in result.tokens.items():
            self._rows[id].token_ids.append(token)
        for id in result.failed:
            self._rows[id].dead = True

    def _await(self, step: int, rows: list[Row]) -> None:
        """Another rank samples for `rows`. Until its result is known each counts as failed: no iteration needs it
        before, and one that is released unheard may have failed."""
        self._unknown[step] = rows
        for row in rows:
            row.dead = True

    def _learn(self, earlier: Iterable[IterationResult]) -> None:
        for result in earlier:
            for row in self._unknown.pop(result.step, ()):
                if row.id in result.tokens:
                    row.token_ids.append(result.tokens[row.id])
                    row.dead = False
