// Keys and values of bfloat16 as AMX multiplies them: how a block keeps them, and where attention reads them.
#pragma once

#include "attention.h"
#include "dots.h"

#if defined(__AMX_BF16__)

constexpr int SIDE = 16;  // rows of a tile, and the keys of one product
constexpr int LINE = 32;  // numbers of one of the cache
constexpr int SOON = 64;  // keys by which keys and values are asked for before they are multiplied

inline bool by_tiles(const Heads& heads, bool bfloat16_cache) {
    return HAS_TILES && bfloat16_cache && heads.dim % DEPTHS == 0;
}

// Blocks that tiles can be read from. What is kept of one for a head: keys [block_size / SIDE][dim / 2][SIDE][2], values
// [block_size / 2][dim][2].
inline bool in_pairs(const Heads& heads) { return heads.block_size % SIDE == 0; }

inline size_t key_place(const Heads& heads, int offset, int d) {
    return size_t(offset / SIDE) * SIDE * heads.dim + (size_t(d / 2) * SIDE + offset % SIDE) * 2;
}
inline size_t value_place(const Heads& heads, int offset, int d) {
    return (size_t(offset / 2) * heads.dim + d) * 2 + offset % 2;
}

inline void keep_in_pairs(const Kept<bfloat16>& kept, size_t at, int offset, const float* key, const float* value) {
    bfloat16 *keys = kept.keys + at, *values = kept.values + at;
    // A thread may write the other of a pair meanwhile.
    const __mmask32 own = offset % 2 ? 0xAAAAAAAA : 0x55555555;
    for (int d = 0; d < kept.heads.dim; d += LANES) {
        bfloat16 short_key[LANES];
        store_some(short_key, load(key + d), LANES);
        for (int i = 0; i < LANES; i += 2) std::memcpy(keys + key_place(kept.heads, offset, d + i), short_key + i, 4);
        const __m512i short_value = _mm512_cvtepu16_epi32(__m256i(_mm512_cvtneps_pbh(__m512(load(value + d)))));
        const __m512i twice = _mm512_or_si512(short_value, _mm512_slli_epi32(short_value, 16));
        _mm512_mask_storeu_epi16(values + value_place(kept.heads, offset - offset % 2, d), own, twice);
    }
}

// `keys` from `begin` on, in whole products, of the `length` that a request's head looks at.
struct Part {
    int request, head, begin, keys, length;
};

// What is read soon. Its lines are asked for a few at a time, between products: the processor waits when there are many.
struct Soon {
    const bfloat16* from = nullptr;
    size_t step = 0;  // numbers from four lines to the next four

    // From the at-th four lines on two times four.
    void ask(int at) const {
        if (!from) return;
        const bfloat16 *first = from + at * step, *second = first + step;
        for (int i = 0; i < 4; ++i) fetch(first + i * LINE);
        for (int i = 0; i < 4; ++i) fetch(second + i * LINE);
    }

    // Here, and not where the compiler would like it.
    static void fetch(const bfloat16* line) { asm volatile("prefetcht0 %0" ::"m"(*line)); }
};

class TileCache {
public:
    explicit TileCache(const Kept<bfloat16>& kept) : kept_(kept), heads_(kept.heads) {}

    // Keys of SIDE positions from a part's j on, [dim / 2][SIDE][2]: where they are, or a copy. What is behind the request's
    // end is its own or another's, and as finite as all that is kept.
    const bfloat16* key_columns(const Part& part, int j, int copies) const {
        const int size = heads_.block_size, dim = heads_.dim, position = part.begin + j;
        if (in_pairs(heads_)) return key_block(part, position);
        bfloat16* copy = empty(dim, copies);
        for (int i = 0; i < SIDE && is_kept(part.request, position + i); ++i) {
            const bfloat16* from = kept_.keys + kept_.at(part.request, part.head, position + i) + (position + i) % size;
            for (int d = 0; d < dim; ++d) copy[size_t(d / 2) * 2 * SIDE + 2 * i + d % 2] = from[size_t(d) * size];
        }
        return copy;
    }

    // Values of SIDE positions, [SIDE / 2][dim][2].
    const bfloat16* value_columns(const Part& part, int j) const {
        const int size = heads_.block_size, dim = heads_.dim, position = part.begin + j;
        if (in_pairs(heads_)) return value_block(part, position);
        bfloat16* copy = empty(dim, 0);
        for (int i = 0; i < SIDE && is_kept(part.request, position + i); ++i) {
            const size_t block = kept_.at(part.request, part.head, position + i);
            const bfloat16* from = kept_.values + block + size_t((position + i) % size) * dim;
            for (int d = 0; d < dim; ++d) copy[value_place(heads_, i, d)] = from[d];
        }
        settle();
        return copy;
    }

    // What is read at key j of a part, or behind its keys.
    Soon after_key(const Part& part, int j) const {
        if (j >= part.keys) return after_value(part, j - part.keys, 0);
        return soon_keys(part, part.begin + j, 0);
    }
    // As above, of the values of the dimensions from d on; behind them are the keys of the next part.
    Soon after_value(const Part& part, int j, int d) const {
        const int position = part.begin + j;
        if (j >= part.keys) return position < part.length ? soon_keys(part, position, d) : Soon{};
        if (!in_pairs(heads_)) return {};
        return {value_block(part, position) + d * 2, size_t(heads_.dim) * 2};
    }

private:
    Soon soon_keys(const Part& part, int position, int d) const {
        if (!in_pairs(heads_)) return {};
        return {key_block(part, position) + d * SIDE, 4 * LINE};
    }

    const bfloat16* key_block(const Part& part, int position) const {
        const size_t block = kept_.at(part.request, part.head, position);
        return kept_.keys + block + key_place(heads_, position % heads_.block_size, 0);
    }
    const bfloat16* value_block(const Part& part, int position) const {
        const size_t block = kept_.at(part.request, part.head, position);
        return kept_.values + block + value_place(heads_, position % heads_.block_size, 0);
    }

    bool is_kept(int request, int position) const {
        const int blocks = kept_.batch.table_starts[request + 1] - kept_.batch.table_starts[request];
        return position < blocks * heads_.block_size;
    }

    // Room for one of four copies.
    static bfloat16* empty(int dim, int which) {
        thread_local std::vector<bfloat16> memory[4];
        memory[which].assign(size_t(SIDE) * dim, bfloat16{0});
        return memory[which].data();
    }

    const Kept<bfloat16> kept_;
    const Heads& heads_;
};

#else

inline bool by_tiles(const Heads&, bool) { return false; }

#endif

// A token's key and value of one head to where attention reads them.
template <class Number>
inline void keep(const Kept<Number>& kept, int request, int head, int position, const float* key, const float* value) {
    const size_t at = kept.at(request, head, position);
    const int offset = position % kept.heads.block_size;
#if defined(__AMX_BF16__)
    if constexpr (std::is_same_v<Number, bfloat16>)
        if (by_tiles(kept.heads, true) && in_pairs(kept.heads)) return keep_in_pairs(kept, at, offset, key, value);
#endif
    keep_plain(kept, at, offset, key, value);
}

