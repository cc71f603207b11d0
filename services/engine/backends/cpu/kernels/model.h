// A decoder as Python describes it. structs.py has the same fields.
#pragma once

#include "routing.h"
#include "slices.h"
#include "tile_attention.h"

struct Norm {
    const float* weight;
    const float* bias;  // or null
};

// What a layer adds behind its MLP: the norm of down(activation(gate x) * p), where p are numbers that the layer gets of a
// token. Without panels of `gate`, there is none.
struct LayerInputs {
    Matrix gate, down;
    Norm norm;
};

// Norms without a weight are left out.
struct Layer {
    Norm attention_norm;
    Matrix qkv;  // queries; keys if there are `has_keys`; values if there are `has_values`
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
    int32_t heads;       // which of the model's
    int32_t has_keys;    // else keys and values are those that another layer has written
    int32_t has_values;  // else values are the keys before norm and rotary embeddings
    float scale;         // x is multiplied by it at the end of a layer with norms behind attention and MLP
    LayerInputs inputs;
    Experts experts;  // with none, the layer has `up` and `down`
};

enum class Activation : int32_t { SILU, GELU, RELU_SQUARED, GELU_ERF };

// What steps pass to each other. The inputs of products: of the hidden size, and wider ones. The results of products
// that are normalised before they are added to x. The results of adapters' first products. They grow as needed.
struct ProductInputs {
    Numbers narrow, wide, change, low;
};

struct Buffers {
    Numbers qkv;        // [tokens, qkv_width]
    Numbers projected;  // [tokens, all layers, numbers]: of x, for `layer_inputs` of a batch
    std::vector<ProductInputs> inputs;  // one for each thread that works alone; a team shares the first
    Routing routing;
    double seconds[6] = {};  // spent in each Phase
};

// How `layer_inputs` of a batch are made of x before the first layer and of the rows of a second embedding.
struct InputsOfLayers {
    int32_t numbers;    // of a token and layer; 0: there are none
    float rows_factor;  // of the embedding's rows
    Matrix projection;  // of x, [all layers * numbers] outputs
    Norm norm;          // of each layer's numbers of a projection
    float epsilon;
};

enum Phase { NORMS, PROJECTIONS, PLACING, ATTENTION, MLP, VOCABULARY };

struct Model {
    int32_t layer_count, hidden, layer_norm, norms_all_heads, norms_after_rotary, value_norms, parallel, gated;
    int32_t norms_sums;      // x becomes what a norm makes of it
    int32_t widest;          // numbers of a row between a layer's products: of outputs of attention, and in the MLP
    int32_t qkv_width;       // of the widest layer
    int32_t writing_layers;  // the layers behind these have no keys of their own
    int32_t heads_count;
    CacheKind cache_kind;
    int32_t threads;
    Activation activation;
    float epsilon, logits_soft_cap;  // 0: none
    float swiglu_alpha, swiglu_limit;  // see `clamp_gated`; limit 0: none
    const Heads* heads;  // of each kind of layer
    const Layer* layers;
    Norm last_norm;
    Matrix vocabulary;
    InputsOfLayers inputs;
    Buffers* buffers;
};
