// The KV cache in bfloat16 for AMX: the order of a block's keys and values, and where attention reads them.
#pragma once

#include "attention.h"
#include "code_attention.h"
#include "dots.h"

#if defined(__AMX_BF16__)

constexpr int SIDE = 16;  // rows of a tile, and keys of one product
constexpr int LINE = 32;  // numbers of a cache line
constexpr int DISTANCE = 64;  // how many keys before their use keys and values are prefetched

inline bool by_tiles(const Heads& heads, CacheKind kind) {
    return HAS_TILES && kind == BFLOAT16_CACHE && heads.dim % DEPTHS == 0;
}

// Whether tiles can be loaded from blocks. Then a block has, for each head, keys [block_size / SIDE][dim / 2][SIDE][2]
// and values [block_size / 2][dim][2].
inline bool in_pairs(const Heads& heads) { return heads.block_size % SIDE == 0; }

inline size_t key_place(const Heads& heads, int offset, int d) {
    return size_t(offset / SIDE) * SIDE * heads.dim + (size_t(d / 2) * SIDE + offset % SIDE) * 2;
}
inline size_t value_place(const Heads& heads, int offset, int d) {
    return (size_t(offset / 2) * heads.dim + d) * 2 + offset % 2;
}

inline void write_pairs(const LayerCache<bfloat16>& cache, size_t at, int offset, const float* key, const float* value) {
    bfloat16 *keys = cache.keys + at, *values = cache.values + at;
    // Another thread may write the other number of a pair at the same time.
    const __mmask32 own = offset % 2 ? 0xAAAAAAAA : 0x55555555;
    for (int d = 0; d < cache.heads.dim; d += LANES) {
        bfloat16 short_key[LANES];
        store_some(short_key, load(key + d), LANES);
        for (int i = 0; i < LANES; i += 2) std::memcpy(keys + key_place(cache.heads, offset, d + i), short_key + i, 4);
        const __m512i short_value = _mm512_cvtepu16_epi32(__m256i(_mm512_cvtneps_pbh(__m512(load(value + d)))));
        const __m512i twice = _mm512_or_si512(short_value, _mm512_slli_epi32(short_value, 16));
        _mm512_mask_storeu_epi16(values + value_place(cache.heads, offset - offset % 2, d), own, twice);
    }
}

// `keys` keys from `begin` on, a multiple of SIDE, of the `length` that a request's head looks at.
struct KeyRange {
    int request, head, begin, keys, length;
};

// What is read soon. It is prefetched a few lines at a time between products, because the processor waits if there are
// many.
struct Prefetch {
    const bfloat16* from = nullptr;
    size_t step = 0;  // numbers from four lines to the next four

    // Prefetches two times four lines from the at-th four on.
    void ask(int at) const {
        if (!from) return;
        const bfloat16 *first = from + at * step, *second = first + step;
        for (int i = 0; i < 4; ++i) fetch(first + i * LINE);
        for (int i = 0; i < 4; ++i) fetch(second + i * LINE);
    }

    // The asm keeps the compiler from moving it.
    static void fetch(const bfloat16* line) { asm volatile("prefetcht0 %0" ::"m"(*line)); }
};

class TileCache {
public:
    explicit TileCache(const LayerCache<bfloat16>& cache) : cache_(cache), heads_(cache.heads) {}

    // Keys of SIDE positions from the range's j on, [dim / 2][SIDE][2]: in the cache, or a copy. Positions past the
    // request's end have values of this or another request, which are finite like all in the cache.
    const bfloat16* key_columns(const KeyRange& range, int j, int copies) const {
        const int size = heads_.block_size, dim = heads_.dim, position = range.begin + j;
        if (in_pairs(heads_)) return key_block(range, position);
        bfloat16* copy = empty(dim, copies);
        for (int i = 0; i < SIDE && is_cached(range.request, position + i); ++i) {
            const bfloat16* from = cache_.keys + cache_.at(range.request, range.head, position + i) + (position + i) % size;
            for (int d = 0; d < dim; ++d) copy[size_t(d / 2) * 2 * SIDE + 2 * i + d % 2] = from[size_t(d) * size];
        }
        return copy;
    }

    // Values of SIDE positions, [SIDE / 2][dim][2].
    const bfloat16* value_columns(const KeyRange& range, int j) const {
        const int size = heads_.block_size, dim = heads_.dim, position = range.begin + j;
        if (in_pairs(heads_)) return value_block(range, position);
        bfloat16* copy = empty(dim, 0);
        for (int i = 0; i < SIDE && is_cached(range.request, position + i); ++i) {
            const size_t block = cache_.at(range.request, range.head, position + i);
            const bfloat16* from = cache_.values + block + size_t((position + i) % size) * dim;
            for (int d = 0; d < dim; ++d) copy[value_place(heads_, i, d)] = from[d];
        }
        settle();
        return copy;
    }

    // What is read at key j of a range, or after its keys.
    Prefetch after_key(const KeyRange& range, int j) const {
        if (j >= range.keys) return after_value(range, j - range.keys, 0);
        return keys_at(range, range.begin + j, 0);
    }
    // The same for values of the dimensions from d on. After them come the keys of the next range.
    Prefetch after_value(const KeyRange& range, int j, int d) const {
        const int position = range.begin + j;
        if (j >= range.keys) return position < range.length ? keys_at(range, position, d) : Prefetch{};
        if (!in_pairs(heads_)) return {};
        return {value_block(range, position) + d * 2, size_t(heads_.dim) * 2};
    }

private:
    Prefetch keys_at(const KeyRange& range, int position, int d) const {
        if (!in_pairs(heads_)) return {};
        return {key_block(range, position) + d * SIDE, 4 * LINE};
    }

    const bfloat16* key_block(const KeyRange& range, int position) const {
        const size_t block = cache_.at(range.request, range.head, position);
        return cache_.keys + block + key_place(heads_, position % heads_.block_size, 0);
    }
    const bfloat16* value_block(const KeyRange& range, int position) const {
        const size_t block = cache_.at(range.request, range.head, position);
        return cache_.values + block + value_place(heads_, position % heads_.block_size, 0);
    }

    bool is_cached(int request, int position) const {
        const int blocks = cache_.batch.table_starts[request + 1] - cache_.batch.table_starts[request];
        return position < blocks * heads_.block_size;
    }

    // Memory for one of four copies.
    static bfloat16* empty(int dim, int which) {
        thread_local std::vector<bfloat16> memory[4];
        memory[which].assign(size_t(SIDE) * dim, bfloat16{0});
        return memory[which].data();
    }

    const LayerCache<bfloat16> cache_;
    const Heads& heads_;
};

#else

inline bool by_tiles(const Heads&, CacheKind) { return false; }

#endif

// Writes a token's key and value of one head to the cache.
template <class Number>
inline void write_position(const LayerCache<Number>& cache, int request, int head, int position, const float* key, const float* value) {
    const size_t at = cache.at(request, head, position);
    const int offset = position % cache.heads.block_size;
#if defined(__AMX_BF16__)
    if constexpr (std::is_same_v<Number, bfloat16>)
        if (by_tiles(cache.heads, BFLOAT16_CACHE) && in_pairs(cache.heads)) return write_pairs(cache, at, offset, key, value);
#endif
    if constexpr (std::is_same_v<Number, int8_t>)
        write_codes(cache, at, offset, key, value);
    else
        write_plain(cache, at, offset, key, value);
}

