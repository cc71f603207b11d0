// A decoder as Python describes it. structs.py has the same fields.
#pragma once

#include "routing.h"
#include "slices.h"
#include "tile_attention.h"

struct Norm {
    const float* weight;
    const float* bias;  // or null
};

// Norms without a weight are left out.
struct Layer {
    Norm attention_norm;
    Matrix qkv;
    const float* query_norm;  // [dim], or of all heads [queries * dim], or null
    const float* key_norm;
    Matrix output;
    Norm mlp_norm;
    Norm attention_post_norm, mlp_post_norm;
    Matrix up;  // gated: each panel has LANES gates and the LANES outputs that they multiply
    Matrix down;
    void* keys;
    void* values;
    const float* cosines;  // [positions, dim / 2], or null without rotary embeddings
    const float* sines;
    const float* sinks;  // see LayerCache
    int32_t window;
    Experts experts;  // with none, the layer has `up` and `down`
};

enum class Activation : int32_t { SILU, GELU, RELU_SQUARED };

// What steps pass to each other. The inputs of products: of the hidden size, and wider ones. The results of products
// that are normalised before they are added to x. They grow as needed.
struct ProductInputs {
    Numbers narrow, wide, change;
};

struct Buffers {
    Numbers qkv;  // [tokens, width]
    std::vector<ProductInputs> inputs;  // one for each thread that works alone; a team shares the first
    Routing routing;
    double seconds[6] = {};  // spent in each Phase
};

enum Phase { NORMS, PROJECTIONS, PLACING, ATTENTION, MLP, VOCABULARY };

struct Model {
    int32_t layer_count, hidden, intermediate, layer_norm, norms_all_heads, norms_after_rotary, parallel, gated;
    CacheKind cache_kind;
    int32_t threads;
    Activation activation;
    float epsilon, logits_soft_cap;  // 0: none
    float swiglu_alpha, swiglu_limit;  // see `clamp_gated`; limit 0: none
    Heads heads;
    const Layer* layers;
    Norm last_norm;
    Matrix vocabulary;
    Buffers* buffers;
};
