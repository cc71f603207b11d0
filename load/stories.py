"""Prompts whose greedy answers are long and do not repeat themselves, so that stop tokens can end them anywhere."""

from __future__ import annotations

from itertools import product

from load.options import Options, model_folder
from services.text import Tokenizer

WHO = ("a lighthouse keeper", "an old sailor", "a young baker", "a lost robot", "a curious fox", "a tired teacher")
WHAT = ("a storm", "a hidden door", "a long journey", "a forgotten letter", "a strange guest", "a broken clock")


def story_prompts(options: Options, count: int) -> list[list[int]]:
    """Token ids of so many different chats that ask for a story; raises ValueError for more than there are."""
    asked = [f"Tell me a story about {who} and {what}." for who, what in product(WHO, WHAT)]
    if count > len(asked):
        raise ValueError(f"{count} prompts, there are {len(asked)}")
    tokenizer = Tokenizer.load(model_folder(options))
    return [
        tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": text}]), add_special_tokens=False)
        for text in asked[:count]
    ]
