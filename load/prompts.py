"""What the users of a load test ask."""

from __future__ import annotations

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

# for completions: an instruct model ends a text that is a question at once
BEGINNINGS = (
    "Once upon a time there was a lighthouse keeper who",
    "The three primary colours are",
    "The capital of France is Paris, and the capital of Spain is",
    "To make a cup of tea, first",
    "The sea was calm that morning, and",
    "Bees make honey because",
)

WORDS = ("the", "sea", "was", "calm", "and", "a", "small", "boat", "went", "slowly", "out")


def text_of(tokens: int) -> str:
    """English of about `tokens` tokens (these words are one token each for most vocabularies)."""
    return " ".join(WORDS[i % len(WORDS)] for i in range(tokens))
