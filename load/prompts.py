"""What the users of a load test ask: short questions, or requests of the lengths of the paper's trace."""

from __future__ import annotations

import random
from dataclasses import dataclass

QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "How many days are there in a leap year?",
    "Write one sentence about the sea.",
    "What do bees make?",
    "Explain in two sentences why the sky is blue.",
    "Give me a title for a story about a lighthouse keeper.",
    "Which planet is closest to the sun?",
    "List four animals that can swim.",
    "What is the opposite of cold?",
    "Tell me a short fact about penguins.",
    "How does a bicycle stay upright?",
)

WORDS = ("the", "sea", "was", "calm", "and", "a", "small", "boat", "went", "slowly", "out")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of fixed lengths: token ids in, exactly `max_tokens` out (EOS ignored)."""

    prompt: tuple[int, ...]
    max_tokens: int


def paper(seed: int = 0, requests: int = 64) -> list[TraceRequest]:
    """The paper's trace (section 6.2): input ~ U(32, 512) tokens, output ~ U(1, 128).

    Drawn per request in this order: input length, its ids from U(10, 40000), output length.
    """
    rng = random.Random(seed)
    trace = []
    for _ in range(requests):
        prompt = tuple(rng.randint(10, 40000) for _ in range(rng.randint(32, 512)))
        trace.append(TraceRequest(prompt, rng.randint(1, 128)))
    return trace


def text_of(tokens: int) -> str:
    """English of about `tokens` tokens (these words are one token each for most vocabularies)."""
    return " ".join(WORDS[i % len(WORDS)] for i in range(tokens))
