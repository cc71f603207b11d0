// A decoder as Python describes it. structs.py has the same fields.
#pragma once

#include "slices.h"
#include "tile_attention.h"

struct Norm {
    const float* weight;
    const float* bias;  // or null
};

struct Layer {
    Norm attention_norm;
    Matrix qkv;
    const float* query_norm;  // [dim] or null
    const float* key_norm;
    Matrix output;
    Norm mlp_norm;
    Matrix up;  // gated: each panel has LANES gates and the LANES outputs that they multiply
    Matrix down;
    void* keys;
    void* values;
};

// Inputs of products, which steps pass to each other: of the hidden size, and wider ones. They grow as needed.
struct ProductInputs {
    Numbers narrow, wide;
};

struct Buffers {
    Numbers qkv;  // [tokens, width]
    std::vector<ProductInputs> inputs;  // one for each thread that works alone; a team shares the first
    double seconds[6] = {};  // spent in each Phase
};

enum Phase { NORMS, PROJECTIONS, PLACING, ATTENTION, MLP, VOCABULARY };

struct Model {
    int32_t layer_count, hidden, intermediate, layer_norm, gated;
    CacheKind cache_kind;
    int32_t threads;
    float epsilon;
    Heads heads;
    const float* cosines;  // [positions, dim / 2], or null if positions are learned
    const float* sines;
    const Layer* layers;
    Norm last_norm;
    Matrix vocabulary;
    Buffers* buffers;
};
