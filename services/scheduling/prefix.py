"""Prefix keys: what a full KV block holds, as a name that two requests with an equal beginning share."""

from __future__ import annotations

from array import array
from hashlib import blake2b

KEY_BYTES = 16


class PrefixKeys:
    """The keys of one request's full blocks, made as they are asked for.

    Keys and values of a token depend on it and all tokens before it, so a block's key is a digest of the key before it
    and of its own tokens. `salt` begins the chain: requests of different salts share nothing.
    """

    __slots__ = ("_block_size", "_keys", "_salt")

    def __init__(self, salt: str, block_size: int) -> None:
        self._salt = blake2b(salt.encode(), digest_size=KEY_BYTES).digest()
        self._block_size = block_size
        self._keys: list[bytes] = []

    def first(self, count: int, prompt: list[int], output: list[int]) -> list[bytes]:
        """Keys of the first `count` blocks of prompt + output, which must have as many tokens."""
        while len(self._keys) < count:
            begin = len(self._keys) * self._block_size
            self._keys.append(self._key(_tokens(prompt, output, begin, begin + self._block_size)))
        return self._keys[:count]

    def _key(self, tokens: list[int]) -> bytes:
        assert len(tokens) == self._block_size, f"a block of {len(tokens)} tokens"
        before = self._keys[-1] if self._keys else self._salt
        return blake2b(before + array("I", tokens).tobytes(), digest_size=KEY_BYTES).digest()


def _tokens(prompt: list[int], output: list[int], begin: int, end: int) -> list[int]:
    """`(prompt + output)[begin:end]`, without making it all."""
    split = len(prompt)
    return prompt[begin:end] + output[max(0, begin - split) : max(0, end - split)]
