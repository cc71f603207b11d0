"""NullEngine: an engine without a model that answers at once or after a set time, to measure all around an engine."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from services.engine.batch.block_names import BlockNames
from services.engine.settings import (
    NO_TOKEN,
    EngineSettings,
    check_deadly,
    choose_block_size,
    count_warm_up_blocks,
    features_of,
)
from services.errors import StaleEpoch
from services.messages import EngineFigures, Iteration, IterationResult, Logprobs, NewRequest, PromptLogprobs
from services.models.info import ModelInfo
from services.started import Started, finished

DEFAULT_BLOCKS = 65_536
LIKELY = -1.0  # the log probability of every token


@dataclass(slots=True)
class _Counters:
    request: NewRequest
    hash: int  # of the request's id
    num_tokens: int
    num_computed_tokens: int = 0
    last_token: int = -1


class NullEngine:
    """Has the interface of Engine. A token is a function of request id and position, whatever the settings and the
    grammar of the request. Imports no torch."""

    def __init__(self, figures: EngineFigures, deadly: int = NO_TOKEN, iteration: float = 0.0) -> None:
        """An iteration takes at least `iteration` seconds, without using a processor."""
        self.figures = figures
        self._iteration = iteration
        self._requests: dict[str, _Counters] = {}
        self._names = BlockNames(figures.block_size)
        self._deadly = deadly
        self._epoch: str | None = None

    @classmethod
    def load(cls, folder: Path, settings: EngineSettings) -> NullEngine:
        """Takes vocabulary and length of the model in `folder`, and does not read its weights."""
        model = ModelInfo.load(folder, settings.cache_dir)
        return cls(
            EngineFigures(
                model=model.name,
                max_model_len=(settings.max_model_len or model.max_model_len) + (model.pooling is not None),
                num_blocks=settings.kv_blocks or DEFAULT_BLOCKS,
                block_size=choose_block_size(settings),
                vocab_size=model.vocab_size,
                numerics="null",
                features=features_of(model),
                vector=model.pooling.size if model.pooling else 0,
            ),
            settings.deadly_token,
            settings.null_iteration,
        )

    @property
    def block_names(self) -> dict[int, bytes]:
        return self._names.as_dict()

    @property
    def warm_up_blocks(self) -> list[int]:
        first = self.figures.num_blocks
        return list(range(first, first + count_warm_up_blocks(self.figures.block_size)))

    def reset(self, epoch: str) -> None:
        self._requests.clear()
        self._epoch = epoch

    def start(self, iteration: Iteration) -> Started[IterationResult]:
        """See Engine.start; it ends at once."""
        return finished(self.run(iteration))

    def run(self, iteration: Iteration) -> IterationResult:
        """See Engine.run; no request fails here."""
        started = time.perf_counter()
        if iteration.epoch != self._epoch:
            raise StaleEpoch(f"iteration of epoch {iteration.epoch!r}, the engine's is {self._epoch!r}")
        self._names.begin(iteration)
        if iteration.sleep:
            self._names.clear()
        for id in iteration.released:
            self._requests.pop(id, None)
        for new in iteration.new:
            check_deadly(self._deadly, new.token_ids)
            self._requests[new.id] = _Counters(
                new, zlib.crc32(new.id.encode()), len(new.token_ids), new.num_computed_tokens
            )
        tokens: dict[str, int] = {}
        logprobs: dict[str, Logprobs] = {}
        for id, count in iteration.scheduled.items():
            counters = self._requests[id]
            check_deadly(self._deadly, (counters.last_token,))
            counters.num_computed_tokens += count
            assert counters.num_computed_tokens <= counters.num_tokens, f"{id}: {count} tokens are too many"
            if counters.num_computed_tokens == counters.num_tokens:
                tokens[id] = counters.last_token = self._token(counters)
                if counters.request.sampling.logprobs is not None:
                    logprobs[id] = _logprobs(counters)
                counters.num_tokens += 1
        time.sleep(max(0.0, self._iteration - (time.perf_counter() - started)))
        return IterationResult(iteration.epoch, iteration.step, tokens, logprobs, elapsed=time.perf_counter() - started)

    def _token(self, counters: _Counters) -> int:
        """A token from the middle half of the vocabulary, where tokenizers keep no special tokens."""
        quarter = self.figures.vocab_size // 4
        return quarter + (counters.hash + counters.num_tokens * 2_654_435_761) % max(1, 2 * quarter)


def _logprobs(counters: _Counters) -> Logprobs:
    """Log probabilities of the last token; with the first output token also those of the prompt."""
    sampling, prompt = counters.request.sampling, None
    if sampling.prompt_logprobs is not None and counters.num_tokens == counters.request.num_prompt_tokens:
        count = counters.num_tokens - 1
        most = count * sampling.prompt_logprobs
        prompt = PromptLogprobs([LIKELY] * count, [1] * count, [0] * most, [LIKELY] * most)
    vector = counters.hash.to_bytes(4, "little") * sampling.vector
    return Logprobs(LIKELY, [(counters.last_token, LIKELY)] * (sampling.logprobs or 0), prompt, vector)
