// A decoder as Python describes it: structs.py, field for field.
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
    Matrix up;  // gated: panels of LANES gates and LANES of what they let through
    Matrix down;
    void* keys;
    void* values;
};

// What one step hands to the next as a product's input, of the hidden size and wider; grown as needed.
struct Between {
    Numbers narrow, wide;
};

struct Buffers {
    Numbers qkv;  // [tokens, width]
    std::vector<Between> between;  // one for each thread that works alone; a team shares the first
    double seconds[6] = {};  // spent in each Phase
};

enum Phase { NORMS, PROJECTIONS, PLACING, ATTENTION, MLP, VOCABULARY };

struct Model {
    int32_t layer_count, hidden, intermediate, layer_norm, gated, bfloat16_cache, threads;
    float epsilon;
    Heads heads;
    const float* cosines;  // [positions, dim / 2], or null where positions are embedded
    const float* sines;
    const Layer* layers;
    Norm last_norm;
    Matrix vocabulary;
    Buffers* buffers;
};
