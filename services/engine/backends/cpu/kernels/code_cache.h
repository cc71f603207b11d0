// Keys and values in eight bits. Those of a token have for each head a scale of their own, so what is stored depends on
// that token alone. A block has for each head all codes, and behind them block_size scales.
//
// Codes are multiplied in pairs (code_products.h). Pairs of a key are neighbouring dimensions, those of values
// neighbouring positions: keys are [dim / 2][block_size][2] and values [block_size / 2][dim][2]. Blocks and heads that are
// not whole vectors have the order of the other formats, and attention reads a copy.
#pragma once

#include <algorithm>

#include "batch.h"

inline bool codes_in_pairs(const Heads& heads) { return heads.block_size % LANES == 0 && heads.dim % WIDTH == 0; }

// Where the scale of a position is, in the part of a block that begins at `first` for a head.
inline int8_t* scale_at(const Heads& heads, int8_t* first, int offset) {
    return first + size_t(heads.block_size) * heads.dim + offset * sizeof(float);
}

// Copies `count` scales, which need not be aligned.
inline void copy_scales(const int8_t* from, int count, float* to) {
    for (; count >= LANES; count -= LANES, from += sizeof(Vector), to += LANES) std::memcpy(to, from, sizeof(Vector));
    if (count) std::memcpy(to, from, count * sizeof(float));
}

// Codes of a vector that is at most 2^15 or so: the nearest integers, in the low bits.
inline Ints rounded(Vector v) { return same_bits<Ints>(v + 12582912.0f); }  // 1.5 * 2^23: adding it rounds

// Writes a head's codes, number d at place(d), and their scale, which is NaN if a number is NaN or infinite.
template <class Place>
inline void write_scaled(const float* from, int dim, int8_t* to, int8_t* scale_to, const Place& place) {
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
        const Ints codes = rounded(part(d) * inverse);
        for (int i = 0; i < std::min(LANES, dim - d); ++i) to[place(d + i)] = int8_t(codes[i]);
    }
    std::memcpy(scale_to, &scale, sizeof scale);
}

// Writes a token's key and value of one head.
inline void write_codes(const LayerCache<int8_t>& cache, size_t at, int offset, const float* key, const float* value) {
    const Heads& heads = cache.heads;
    const size_t size = heads.block_size, dim = heads.dim;
    int8_t *keys = cache.keys + at, *values = cache.values + at;
    int8_t *key_scale = scale_at(heads, keys, offset), *value_scale = scale_at(heads, values, offset);
    if (codes_in_pairs(heads)) {
        write_scaled(key, dim, keys + offset * 2, key_scale, [&](int d) { return d / 2 * size * 2 + d % 2; });
        write_scaled(value, dim, values + offset / 2 * dim * 2 + offset % 2, value_scale, [](int d) { return d * 2; });
    } else {
        write_scaled(key, dim, keys + offset, key_scale, [&](int d) { return d * size; });
        write_scaled(value, dim, values + offset * dim, value_scale, [](int d) { return d; });
    }
}
