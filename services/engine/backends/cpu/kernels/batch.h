// A batch, and where the keys and values of its requests are in the cache. structs.py has the fields of Batch and
// Heads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "vectors.h"

struct Batch {
    int32_t tokens, requests, wanted;
    const int32_t* starts;        // [requests + 1], flat index of each request's first token
    const int32_t* contexts;      // [requests], tokens computed before
    const int32_t* table_starts;  // [requests + 1], into `tables`
    const int32_t* tables;        // block ids
    const int32_t* logits_after;  // [wanted], flat indices of tokens
};

struct Heads {
    int32_t queries, keys, dim, block_size;
    float scaling;
    float soft_cap;  // of scores; 0: none

    int group() const { return queries / keys; }
    // Where the keys [dim][block_size] or values [block_size][dim] of a block begin for a head.
    size_t at(int block, int head) const { return (size_t(block) * keys + head) * block_size * dim; }

    int padded_dim() const { return (dim + WIDTH - 1) / WIDTH * WIDTH; }
};

constexpr int FIRST_KEYS = 32;  // a window's first keys are read from a multiple of this on

// The keys and values of one layer.
template <class Number>
struct LayerCache {
    const Batch& batch;
    const Heads& heads;
    Number *keys, *values;
    int window;  // how many keys a query sees: its own and the ones before it

    // Where a query at `position` begins to read. It sees none of the keys before, and not all of the first ones.
    int first_key(int position) const { return std::max(0, position + 1 - window) / FIRST_KEYS * FIRST_KEYS; }

    // Where the block that has this position begins for a head.
    size_t at(int request, int head, int position) const {
        return heads.at(batch.tables[batch.table_starts[request] + position / heads.block_size], head);
    }
};

// Some queries of one request.
struct Span {
    int request, first, count;  // of the request's tokens in this iteration
};
