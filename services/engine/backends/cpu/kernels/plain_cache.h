// How keys and values are written to the cache, except for AMX (tile_cache.h).
//
// With eight bits, the key and the value of a token have for each head a scale of their own, so what is stored depends
// on that token alone. A block has for each head all numbers, in the order of the other formats, and behind them
// block_size scales.
#pragma once

#include <algorithm>

#include "batch.h"

// Writes a token's key and value of one head.
template <class Number>
inline void write_plain(const LayerCache<Number>& cache, size_t at, int offset, const float* key, const float* value) {
    const int size = cache.heads.block_size, dim = cache.heads.dim;
    Number *keys = cache.keys + at + offset, *values = cache.values + at + size_t(offset) * dim;
    for (int i = 0; i < dim; ++i) from_float(keys[size_t(i) * size], key[i]);
    for (int i = 0; i < dim; ++i) from_float(values[i], value[i]);
}

// Where the scale of a position is, in the part of a block that begins at `first` for a head.
inline int8_t* scale_at(const Heads& heads, int8_t* first, int offset) {
    return first + size_t(heads.block_size) * heads.dim + offset * sizeof(float);
}

// Copies `count` scales, which need not be aligned.
inline void copy_scales(const int8_t* from, int count, float* to) {
    for (; count >= LANES; count -= LANES, from += sizeof(Vector), to += LANES) std::memcpy(to, from, sizeof(Vector));
    if (count) std::memcpy(to, from, count * sizeof(float));
}

// Writes a head's numbers, `step` apart, and their scale, which is NaN if a number is NaN or infinite.
inline void write_scaled(const float* from, int dim, int8_t* to, size_t step, int8_t* scale_to) {
    const auto part = [&](int d) {
        Vector v{};
        std::memcpy(&v, from + d, std::min(LANES, dim - d) * sizeof(float));
        return v;
    };
    Vector most{}, odd{};
    for (int d = 0; d < dim; d += LANES) {
        const Vector v = part(d);
        most = larger(larger(v, -v), most);
        odd += v * 0.0f;  // NaN of what is not finite
    }
    const float top = highest(most), scale = top / 127.0f + total(odd);
    const float inverse = top > 1e-30f ? 127.0f / top : 0.0f;  // so that it is finite
    for (int d = 0; d < dim; d += LANES) {
        const Vector shifted = part(d) * inverse + 12582912.0f;  // 1.5 * 2^23: adding it rounds
        const Ints rounded = same_bits<Ints>(shifted);           // their low bytes are the integers
        for (int i = 0; i < std::min(LANES, dim - d); ++i) to[(d + i) * step] = int8_t(rounded[i]);
    }
    std::memcpy(scale_to, &scale, sizeof scale);
}

inline void write_plain(const LayerCache<int8_t>& cache, size_t at, int offset, const float* key, const float* value) {
    const Heads& heads = cache.heads;
    int8_t *keys = cache.keys + at, *values = cache.values + at;
    write_scaled(key, heads.dim, keys + offset, heads.block_size, scale_at(heads, keys, offset));
    write_scaled(value, heads.dim, values + size_t(offset) * heads.dim, 1, scale_at(heads, values, offset));
}
