// The halves of a layer: attention and the MLP.
#pragma once

#include <omp.h>

#include <algorithm>

#include "finishes.h"

// A layer's three steps. Attention begins when all keys that it looks at are written.
enum Step { WRITE_KV, ATTEND, FEED_FORWARD, STEPS };

template <class Input, class Crew>
struct SliceRun;

// See experts.h.
template <class Input, class Crew>
void run_experts(SliceRun<Input, Crew>& run, const Layer& layer);

// Runs steps over one slice of a batch, by a team or by one thread.
template <class Input, class Crew>
struct SliceRun {
    const Model& model;
    const Batch& batch;
    const int* owners;  // the request of each token
    const Slice& slice;
    ProductInputs& inputs;
    Crew& crew;
    float* x;   // [tokens, hidden]
    float* to;  // where the changes of x are written; x itself: they are added
    bool timed = omp_get_thread_num() == 0;  // one thread measures the time
    double began = omp_get_wtime();

    // Steps [first, end), counted through all layers.
    void run(int first, int end) {
        for (int step = first; step < end; ++step) {
            const Layer& layer = model.layers[step / STEPS];
            if (step % STEPS == WRITE_KV) write_kv(layer);
            if (step % STEPS == ATTEND) {
                if (model.parallel) feed_forward_too(layer);
                attend(layer);
            }
            if (step % STEPS == FEED_FORWARD && !model.parallel) feed_forward(layer);
        }
    }

    // Normalised rows of x: row i is the token `token(i)`.
    template <class Token>
    void norm(const Norm& norm, const Token& token) {
        const Tiles& tiles = slice.tiles;
        const Input to = narrow();
        crew.each(tiles.tiles, [&](int tile) {
            const float* rows[ROWS];
            const int count = tiles.rows_of(tile);
            for (int r = 0; r < count; ++r) rows[r] = x + size_t(token(tile * tiles.height + r)) * model.hidden;
            normalise(model, norm, rows, count, tile * tiles.height, to);
        });
        done(NORMS);
    }

    // The same of the slice's own rows, which become their norms if the model says so.
    void norm(const Norm& of) {
        if (!model.norms_sums) return norm(of, [&](int row) { return slice.first + row; });
        float* own = x + size_t(slice.first) * model.hidden;
        const Tiles& tiles = slice.tiles;
        const Input to = narrow();
        crew.each(tiles.tiles, [&](int tile) {
            const float* rows[ROWS];
            const int first = tile * tiles.height, count = tiles.rows_of(tile);
            for (int r = 0; r < count; ++r) rows[r] = own + size_t(first + r) * model.hidden;
            normalise(model, of, rows, count, first, Replacing<Input>{to, own, model.hidden});
        });
        done(NORMS);
    }

    void product(const Matrix& matrix, const Input& rows, float* to, bool add, Phase phase, const Added& added = {}) {
        Product{matrix, to, add, added}.run(crew, rows);
        done(phase);
    }

    // What the rows' adapters add to a product of a layer. Valid until the next call.
    Added added(const Layer& layer, Changed product, const Input& rows, int depth) {
        if (slice.adapted.empty()) return {};
        const int of_layer = int(&layer - model.layers) * CHANGED;
        return {crew, slice, of_layer + product, rows, depth, batch.strips, inputs.low.data()};
    }

    // Caps logits [rows, vocabulary].
    void cap(float* logits, int rows) {
        const int size = model.vocabulary.outputs;
        crew.each(rows, [&](int row) { cap_all(logits + size_t(row) * size, size, model.logits_soft_cap); });
        done(VOCABULARY);
    }

    // The input of an MLP's second product, from the rows of `narrow`.
    Input activated(const Layer& layer) {
        const Input inner = wide(layer.down.inputs);
        const Activated<Input> to{model, layer.up, layer.down.inputs, inner,
                                  added(layer, CHANGED_UP, narrow(), model.hidden)};
        narrow().multiply(crew, layer.up, to);
        return inner;
    }

    // See LayerInputs.
    void add_inputs(const Layer& layer) {
        norm(Norm{});
        const int numbers = model.inputs.numbers, index = int(&layer - model.layers);
        const size_t step = size_t(model.layer_count) * numbers;
        const float* of_tokens = batch.layer_inputs + slice.first * step + size_t(index) * numbers;
        const Input inner = wide(numbers);
        const TimesInputs<Input> times{model, layer.inputs.gate, of_tokens, step, inner};
        narrow().multiply(crew, layer.inputs.gate, times);
        add(layer.inputs.down, inner, layer.inputs.norm, MLP, {}, false, layer.scale);
    }

    Input narrow() const { return {inputs.narrow, model.hidden, slice.tiles}; }

    void done(Phase phase) {
        if (!timed) return;
        const double now = omp_get_wtime();
        model.buffers->seconds[phase] += now - began;
        began = now;
    }

private:
    Input wide(int depth) const { return {inputs.wide, depth, slice.tiles}; }
    const Heads& heads_of(const Layer& layer) const { return model.heads[layer.heads]; }
    int width(const Layer& layer) const { return layer.qkv.outputs; }
    // The rows of all tokens, of which those of this slice may be used. They are within its part of the memory, since
    // other slices may be in a layer of another width.
    float* qkv(const Layer& layer) const {
        return model.buffers->qkv.data() + size_t(slice.first) * (model.qkv_width - width(layer));
    }
    // Adds a product to x, or its norm if there is `post`, and then scales x. To other memory than x, the product is
    // written, unless there is something already: `onto`.
    void add(const Matrix& matrix, const Input& rows, const Norm& post, Phase phase, const Added& added, bool onto = false,
             float scale = 1) {
        float* own = to + size_t(slice.first) * model.hidden;
        if (to != x || !post.weight) return product(matrix, rows, own, onto || to == x, phase, added);
        product(matrix, rows, inputs.change.data(), false, phase, added);
        add_norms(crew, model, post, inputs.change.data(), slice.count, scale, own);
        done(NORMS);
    }

    // Computes queries, keys and values, and writes the latter two to the cache.
    void write_kv(const Layer& layer) {
        norm(layer.attention_norm);
        const Added changes = added(layer, CHANGED_QKV, narrow(), model.hidden);
        product(layer.qkv, narrow(), qkv(layer) + size_t(slice.first) * width(layer), false, PROJECTIONS, changes);
        each_range(crew, slice.count, 16, [&](int begin, int end) {
            for (int t = slice.first + begin; t < slice.first + end; ++t) write_token(layer, t);
        });
        done(PLACING);
    }

    void attend(const Layer& layer) {
        const Heads& heads = heads_of(layer);
        const Input outputs = wide(heads.queries * heads.dim);
        with_cache(layer, [&](const auto& cache) { attend_to(layer, cache, outputs); });
        const Added changes = added(layer, CHANGED_OUTPUT, outputs, layer.output.inputs);
        add(layer.output, outputs, layer.attention_post_norm, PROJECTIONS, changes, model.parallel);
    }

    void feed_forward(const Layer& layer) {
        if constexpr (!std::is_same_v<Crew, Alone>)  // threads share a batch that goes to experts
            if (layer.experts.count) return run_experts(*this, layer);
        norm(layer.mlp_norm);
        multiply_mlp(layer);
    }

    // The MLP of a layer whose attention gets the same norm of x, and has not been added yet. A team has just made the
    // norm; one thread has worked on other slices since.
    void feed_forward_too(const Layer& layer) {
        if constexpr (std::is_same_v<Crew, Alone>) norm(layer.attention_norm);
        multiply_mlp(layer);
    }

    void multiply_mlp(const Layer& layer) {
        const bool more = layer.inputs.gate.panels;
        const Input inner = activated(layer);
        const Added changes = added(layer, CHANGED_DOWN, inner, layer.down.inputs);
        add(layer.down, inner, layer.mlp_post_norm, MLP, changes, false, more ? 1.0f : layer.scale);
        if (more && to == x) add_inputs(layer);
    }

    template <class Number>
    LayerCache<Number> cache(const Layer& layer) const {
        return {batch,        heads_of(layer), static_cast<Number*>(layer.keys), static_cast<Number*>(layer.values),
                layer.window, layer.sinks};
    }

    // Calls work(cache) with the layer's cache of the numbers that the model keeps.
    template <class Work>
    void with_cache(const Layer& layer, const Work& work) const {
        if (model.cache_kind == BFLOAT16_CACHE) return work(cache<bfloat16>(layer));
        if (model.cache_kind == INT8_CACHE) return work(cache<int8_t>(layer));
        work(cache<float>(layer));
    }

    void write_token(const Layer& layer, int token) {
        const Heads& heads = heads_of(layer);
        const int dim = heads.dim, keys = layer.has_keys ? heads.keys : 0, request = owners[token];
        const int position = batch.contexts[request] + token - batch.starts[request];
        float *row = qkv(layer) + size_t(token) * width(layer), *key = row + heads.queries * dim, *end = key + keys * dim;
        float* value = layer.has_values ? end : copied(key, keys * dim);
        const auto norm_all = [&] {
            if (layer.query_norm) norm_heads(row, heads.queries, dim, layer.query_norm);
            if (layer.key_norm) norm_heads(key, keys, dim, layer.key_norm);
        };
        if (!model.norms_after_rotary) norm_all();
        if (model.value_norms)
            for (int head = 0; head < keys; ++head) normalise(value + head * dim, dim, nullptr, model.epsilon);
        if (layer.cosines)
            for (float* x = row; x < end; x += dim)
                rotate(x, dim, layer.cosines + size_t(position) * dim / 2, layer.sines + size_t(position) * dim / 2);
        if (model.norms_after_rotary) norm_all();
        with_cache(layer, [&](const auto& cache) {
            for (int head = 0; head < keys; ++head)
                write_position(cache, request, head, position, key + head * dim, value + head * dim);
        });
    }

    static float* copied(const float* from, int count) {
        thread_local std::vector<float> memory;
        memory.assign(from, from + count);
        return memory.data();
    }

    // Each head by itself, or all of them as one row.
    void norm_heads(float* x, int heads, int dim, const float* weight) const {
        const int together = model.norms_all_heads ? heads : 1, size = together * dim;
        for (int head = 0; head < heads; head += together, x += size) normalise(x, size, weight, model.epsilon);
    }

    template <class Number>
    void attend_to(const Layer& layer, const LayerCache<Number>& cache, const Input& outputs) {
        const int keys = cache.heads.keys;
        const std::vector<Span>& of_heads = slice.spans[layer.heads];
        with_attention(cache, [&](const auto& attention) {
            const int spans = int(of_heads.size());
            // If there are enough spans, one thread has all heads of a span, which are neighbours in its blocks.
            each_range(crew, spans * keys, spans < 4 * crew.size() ? 1 : keys, [&](int begin, int end) {
                for (int item = begin; item < end; ++item)
                    attention.run(of_heads[item / keys], item % keys, qkv(layer), width(layer), outputs, slice.first);
            });
        });
        done(ATTENTION);
    }
};
