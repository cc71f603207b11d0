// How keys and values are written to the cache, except for AMX (tile_cache.h) and in eight bits (code_cache.h).
#pragma once

#include "batch.h"

// Writes a token's key and value of one head.
template <class Number>
inline void write_plain(const LayerCache<Number>& cache, size_t at, int offset, const float* key, const float* value) {
    const int size = cache.heads.block_size, dim = cache.heads.dim;
    Number *keys = cache.keys + at + offset, *values = cache.values + at + size_t(offset) * dim;
    for (int i = 0; i < dim; ++i) from_float(keys[size_t(i) * size], key[i]);
    for (int i = 0; i < dim; ++i) from_float(values[i], value[i]);
}
