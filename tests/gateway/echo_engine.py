"""An engine for tests that repeats the prompt cyclically: a test chooses the output by its prompt.

The log probability of each output token is -0.5. A prompt token with the id `t` has the log probability -t / 8 and the
rank `t + 1`.

Everything around the engine is real. Words in the prompt make the request fail or run slowly.
"""

from __future__ import annotations

import math
import time

from services.errors import StaleEpoch
from services.messages import EngineFigures, Iteration, IterationResult, Logprobs, NewRequest, PromptLogprobs
from services.started import Started, finished
from services.text import Tokenizer

FAIL = "FAIL"  # the output is what follows it in the prompt; then the request fails
WRITE = "WRITE"  # the output is what follows the last one in the prompt; then the request ends by itself
SLOW = "SLOW"  # each iteration takes 20 ms


class EchoEngine:
    def __init__(self, figures: EngineFigures, tokenizer: Tokenizer) -> None:
        self.figures = figures
        self._tokenizer = tokenizer
        self._eos = tokenizer.encode("<eos>")
        self._epoch: str | None = None
        self.pace = 0.0  # seconds that each iteration takes besides
        self.asked: list[NewRequest] = []  # all requests received
        self._rows: dict[str, tuple[NewRequest, int]] = {}

    def reset(self, epoch: str) -> None:
        self._epoch, self._rows = epoch, {}

    def start(self, iteration: Iteration) -> Started[IterationResult]:
        return finished(self._run(iteration))

    def _run(self, iteration: Iteration) -> IterationResult:
        if iteration.epoch != self._epoch:
            raise StaleEpoch(iteration.epoch)
        time.sleep(self.pace)
        for id in iteration.released:
            self._rows.pop(id, None)
        for new in iteration.new:
            self.asked.append(new)
            self._rows[new.id] = (new, len(new.token_ids) - new.num_prompt_tokens)
        result = IterationResult(iteration.epoch, iteration.step, {})
        for id in iteration.scheduled:
            self._one(id, result)
        return result

    def _one(self, id: str, result: IterationResult) -> None:
        new, position = self._rows[id]
        prompt = new.token_ids[: new.num_prompt_tokens]
        text = self._tokenizer.decode(prompt)
        if SLOW in text:
            time.sleep(0.02)
        if FAIL in text:
            said = self._tokenizer.encode(text.partition(FAIL)[2])
            if position == len(said):
                result.failed[id] = "the prompt said so"
                return
            prompt = said
        if WRITE in text:
            prompt = [*self._tokenizer.encode(text.rpartition(WRITE)[2]), *self._eos]
        token = prompt[position % len(prompt)]
        result.tokens[id] = token
        if new.sampling.logprobs is not None:
            likeliest = [((token + i) % self.figures.vocab_size, -0.5 - i) for i in range(new.sampling.logprobs)]
            top = [(t, p if i < 4 else -math.inf) for i, (t, p) in enumerate(likeliest)]
            result.logprobs[id] = Logprobs(-0.5, top, None if position else _scores(new))
        self._rows[id] = (new, position + 1)


def _scores(new: NewRequest) -> PromptLogprobs | None:
    """The likeliest tokens are always 10, 11, ..., with -1 / 8, -2 / 8, ..."""
    count = new.sampling.prompt_logprobs
    if count is None:
        return None
    scored = new.token_ids[1 : new.num_prompt_tokens]
    ids, logprobs = [10 + i for i in range(count)], [-(1 + i) / 8 for i in range(count)]
    own = [-token / 8 for token in scored]
    return PromptLogprobs(own, [token + 1 for token in scored], ids * len(scored), logprobs * len(scored))
