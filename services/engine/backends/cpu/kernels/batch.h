// A batch, and where the keys and values of its requests are in the cache. structs.py has the fields of Batch and
// Heads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "vectors.h"

struct LowRank;

// Rows with one adapter, and what that adds to each product: [layers][CHANGED], see low_rank.h.
struct AdaptedRows {
    int32_t first, count;
    const LowRank* products;
};

struct Batch {
    int32_t tokens, requests, wanted;
    const int32_t* starts;        // [requests + 1], flat index of each request's first token
    const int32_t* contexts;      // [requests], tokens computed before
    const int32_t* table_starts;  // [requests + 1], into `tables`
    const int32_t* tables;        // block ids
    const int32_t* logits_after;  // [wanted], flat indices of tokens
    const float* layer_inputs;    // [tokens, all layers, numbers], see LayerInputs; or null
    const AdaptedRows* adapted;   // [adapted_count], in the order of rows
    int32_t adapted_count;
    int32_t strips;               // the most of any of their products

    int length(int request) const { return starts[request + 1] - starts[request]; }
};

struct Heads {
    int32_t queries, keys, dim, block_size;
    float scaling;
    float soft_cap;  // of scores; 0: none
    int32_t both_ways;  // a token attends to all tokens of its request, which are all in the batch

    int group() const { return queries / keys; }
    // Where a block begins for a head, if it keeps so many numbers of a position.
    size_t at(int block, int head, int of_position) const { return (size_t(block) * keys + head) * block_size * of_position; }

    int padded_dim() const { return (dim + WIDTH - 1) / WIDTH * WIDTH; }
};

constexpr int FIRST_KEYS = 32;  // a window's first keys are read from a multiple of this on

// How keys and values are kept; decoder.py has the same numbers.
enum CacheKind : int32_t { FLOAT32_CACHE, BFLOAT16_CACHE, INT8_CACHE };

// The keys [dim][block_size] and values [block_size][dim] of one layer, by block and head; int8_t: with scales, see
// plain_cache.h.
template <class Number>
struct LayerCache {
    static constexpr int SCALE = std::is_same_v<Number, int8_t> ? sizeof(float) : 0;  // numbers that its scale takes

    const Batch& batch;
    const Heads& heads;
    Number *keys, *values;
    int window;  // how many keys a query sees: its own and the ones before it
    const float* sinks;  // [queries], a score of each head that takes part in the softmax and has no value; or null

    // Where a query at `position` begins to read. It sees none of the keys before, and not all of the first ones.
    int first_key(int position) const { return std::max(0, position + 1 - window) / FIRST_KEYS * FIRST_KEYS; }

    // The sinks of the heads that share a key head, or null.
    const float* sinks_of(int head) const { return sinks ? sinks + head * heads.group() : nullptr; }

    // Where the block that has this position begins for a head.
    size_t at(int request, int head, int position) const {
        return heads.at(batch.tables[batch.table_starts[request] + position / heads.block_size], head, heads.dim + SCALE);
    }
};

// Some queries of one request.
struct Span {
    int request, first, count;  // of the request's tokens in this iteration
};
