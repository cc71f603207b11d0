"""BlockPool: which KV blocks each request holds. It alone counts and places them; `KVCache` is tensors it indexes."""

from __future__ import annotations


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, ids 0 .. num_blocks - 1.

    In the paper's words (section 4.2): num_blocks * block_size is `n_slots`, `held * block_size` is `n_rsrv`.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0, f"{num_blocks = }"
        assert block_size > 0, f"{block_size = }"
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the blocks used last are the warmest
        self._held: dict[str, list[int]] = {}
        self._unchecked = 0  # blocks placed since the last full check

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def held(self) -> int:
        return self.num_blocks - len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks so many tokens take."""
        return -(-tokens // self.block_size)

    def reserve(self, request: str, blocks: int) -> list[int] | None:
        """Ids of `blocks` blocks, now held by `request`; None and nothing held where so many are not free."""
        assert request not in self._held, f"{request} holds blocks already"
        if blocks > len(self._free):
            return None
        ids = [self._free.pop() for _ in range(blocks)]
        self._held[request] = ids
        self._unchecked += blocks
        return ids

    def release(self, request: str) -> int:
        """Take back all blocks of a request; how many it held, which may be none."""
        ids = self._held.pop(request, [])
        self._free.extend(reversed(ids))
        return len(ids)

    def check_idle(self) -> None:
        """Nothing is held. Looks at each block only after as many were placed: a constant cost a block, and a request
        that comes while a large pool is idle does not wait for it."""
        assert self.free == self.num_blocks, f"{self.held} blocks are held by {list(self._held)} while all is idle"
        if self._unchecked >= self.num_blocks:
            self.check()

    def check(self) -> None:
        """Every block is free or held exactly once."""
        ids = self._free + [block for blocks in self._held.values() for block in blocks]
        assert sorted(ids) == list(range(self.num_blocks)), "a block is lost or shared"
        self._unchecked = 0
