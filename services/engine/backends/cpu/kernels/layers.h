// The halves of a layer: attention and the MLP.
#pragma once

#include <omp.h>

#include <algorithm>

#include "pointwise.h"

// Multiplies a panel's sums by the scales and adds the bias. Sums of columns past the last one are undefined.
template <size_t R>
inline void finish(const Matrix& m, int panel, Vector (&sums)[R][2]) {
    const int column = panel * WIDTH;
    const auto vector = [&](const float* numbers, int half) {
        Vector v{};
        const int left = m.outputs - column - half * LANES;
        if (left >= LANES) return load(numbers + column + half * LANES);
        for (int i = 0; i < left; ++i) v[i] = numbers[column + half * LANES + i];
        return v;
    };
    for (int half = 0; half < 2; ++half) {
        if (m.scales) {
            const Vector scales = vector(m.scales, half);
            for (auto& both : sums) both[half] *= scales;
        }
        if (m.bias) {
            const Vector bias = vector(m.bias, half);
            for (auto& both : sums) both[half] += bias;
        }
    }
}

// A product whose rows are written, or added, to `to` [rows, outputs]. An adapter (LoRA) would add its rows' B(Ax)
// here.
struct Product {
    const Matrix& matrix;
    float* to;
    bool add;

    template <class Crew, class Input>
    void run(Crew& crew, const Input& rows) const {
        rows.multiply(crew, matrix, *this, Lines{*this});
    }

    template <size_t R>
    void operator()(int panel, int row, Vector (&sums)[R][2]) const {
        finish(matrix, panel, sums);
        float* at = to + size_t(row) * matrix.outputs + panel * WIDTH;
        const int columns = matrix.outputs - panel * WIDTH;
        if (columns < WIDTH)
            put_some(at, columns, sums);
        else if (add)
            put<true>(at, sums);
        else
            put<false>(at, sums);
    }

private:
    struct Lines {
        const Product& product;

        void operator()(int panel, int row, int count) const {
            for (int r = row; r < row + count; ++r)
                for (int half = 0; half < 2; ++half)
                    __builtin_prefetch(product.to + size_t(r) * product.matrix.outputs + panel * WIDTH + half * LANES, 1);
        }
    };

    // Unrolled, because the processor has little else to do meanwhile.
    template <bool ADD, size_t R>
    void put(float* at, const Vector (&sums)[R][2]) const {
#pragma GCC unroll 16
        for (size_t r = 0; r < R; ++r, at += matrix.outputs) {
            store(at, ADD ? load(at) + sums[r][0] : sums[r][0]);
            store(at + LANES, ADD ? load(at + LANES) + sums[r][1] : sums[r][1]);
        }
    }

    template <size_t R>
    void put_some(float* at, int columns, const Vector (&sums)[R][2]) const {
        for (size_t r = 0; r < R; ++r, at += matrix.outputs)
            for (int i = 0; i < columns; ++i) at[i] = (add ? at[i] : 0.0f) + sums[r][i / LANES][i % LANES];
    }
};

// Turns gates and what they multiply into numbers of which SiLU and a product make GPT-OSS's SwiGLU. Constants come
// first, so that NaN stays NaN.
template <size_t R>
inline void clamp_gated(Vector (&sums)[R][2], float alpha, float limit) {
    const Vector most = broadcast(limit), least = broadcast(-limit);
    for (auto& [gate, up] : sums) {
        gate = smaller(most, gate) * alpha;
        up = (smaller(most, larger(least, up)) + 1.0f) * (1.0f / alpha);
    }
}

// Turns the sums of an MLP's first product into the input of its second, `depth` numbers a row.
template <class Input>
struct Activated {
    const Model& model;
    const Matrix& up;
    int depth;
    const Input& to;

    template <size_t R>
    void operator()(int panel, int row, Vector (&sums)[R][2]) const {
        finish(up, panel, sums);
        if (model.swiglu_limit > 0) clamp_gated(sums, model.swiglu_alpha, model.swiglu_limit);
        const bool gated = model.gated;
        for (int half = 0; half < (gated ? 1 : 2); ++half) {
            const int from = gated ? panel * LANES : panel * WIDTH + half * LANES;
            Vector square[LANES] = {};
#pragma GCC unroll 16
            for (size_t r = 0; r < R; ++r) square[r] = gated ? of(sums[r][0]) * sums[r][1] : of(sums[r][half]);
            if (from < depth) to.set(row, R, from, square, std::min(LANES, depth - from));
        }
    }

    Vector of(Vector x) const {
        if (model.activation == Activation::SILU) return Input::silu(x);
        return model.activation == Activation::GELU ? Input::gelu(x) : relu_squared(x);
    }

    void expect(int panel, int row, int) const {
        const int columns = model.gated ? LANES : WIDTH;
        to.expect(row, panel * columns, columns);
    }
};

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

    void product(const Matrix& matrix, const Input& rows, float* to, bool add, Phase phase) {
        Product{matrix, to, add}.run(crew, rows);
        done(phase);
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
        const Activated<Input> to{model, layer.up, layer.down.inputs, inner};
        narrow().multiply(crew, layer.up, to, [&](auto... at) { to.expect(at...); });
        return inner;
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
    float* qkv() const { return model.buffers->qkv.data(); }
    int width() const { return (model.heads.queries + 2 * model.heads.keys) * model.heads.dim; }
    void norm(const Norm& of) {
        norm(of, [&](int row) { return slice.first + row; });
    }
    // Adds a product to x, or its norm if there is `post`. To other memory than x, the product is written, unless there
    // is something already: `onto`.
    void add(const Matrix& matrix, const Input& rows, const Norm& post, Phase phase, bool onto = false) {
        float* own = to + size_t(slice.first) * model.hidden;
        if (to != x || !post.weight) return product(matrix, rows, own, onto || to == x, phase);
        product(matrix, rows, inputs.change.data(), false, phase);
        add_norms(crew, model, post, inputs.change.data(), slice.count, own);
        done(NORMS);
    }

    // Computes queries, keys and values, and writes the latter two to the cache.
    void write_kv(const Layer& layer) {
        norm(layer.attention_norm);
        product(layer.qkv, narrow(), qkv() + size_t(slice.first) * width(), false, PROJECTIONS);
        each_range(crew, slice.count, 16, [&](int begin, int end) {
            for (int t = slice.first + begin; t < slice.first + end; ++t)
                with_cache(layer, [&](const auto& cache) { write_token(layer, cache, t); });
        });
        done(PLACING);
    }

    void attend(const Layer& layer) {
        const Input outputs = wide(model.heads.queries * model.heads.dim);
        with_cache(layer, [&](const auto& cache) { attend_to(cache, outputs); });
        add(layer.output, outputs, layer.attention_post_norm, PROJECTIONS, model.parallel);
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

    void multiply_mlp(const Layer& layer) { add(layer.down, activated(layer), layer.mlp_post_norm, MLP); }

    template <class Number>
    LayerCache<Number> cache(const Layer& layer) const {
        return {batch,        model.heads, static_cast<Number*>(layer.keys), static_cast<Number*>(layer.values),
                layer.window, layer.sinks};
    }

    // Calls work(cache) with the layer's cache of the numbers that the model keeps.
    template <class Work>
    void with_cache(const Layer& layer, const Work& work) const {
        if (model.cache_kind == BFLOAT16_CACHE) return work(cache<bfloat16>(layer));
        if (model.cache_kind == INT8_CACHE) return work(cache<int8_t>(layer));
        work(cache<float>(layer));
    }

    template <class Number>
    void write_token(const Layer& layer, const LayerCache<Number>& cache, int token) {
        const Heads& heads = model.heads;
        const int dim = heads.dim, request = owners[token];
        const int position = batch.contexts[request] + token - batch.starts[request];
        float *row = qkv() + size_t(token) * width(), *key = row + heads.queries * dim, *value = key + heads.keys * dim;
        const auto norm_all = [&] {
            norm_heads(row, heads.queries, layer.query_norm);
            norm_heads(key, heads.keys, layer.key_norm);
        };
        if (layer.query_norm && !model.norms_after_rotary) norm_all();
        if (layer.cosines)
            for (float* x = row; x < value; x += dim)
                rotate(x, dim, layer.cosines + size_t(position) * dim / 2, layer.sines + size_t(position) * dim / 2);
        if (layer.query_norm && model.norms_after_rotary) norm_all();
        for (int head = 0; head < heads.keys; ++head, key += dim, value += dim)
            write_position(cache, request, head, position, key, value);
    }

    // Each head by itself, or all of them as one row.
    void norm_heads(float* x, int heads, const float* weight) const {
        const int together = model.norms_all_heads ? heads : 1, size = together * model.heads.dim;
        for (int head = 0; head < heads; head += together, x += size) normalise(x, size, weight, model.epsilon);
    }

    template <class Number>
    void attend_to(const LayerCache<Number>& cache, const Input& outputs) {
        const int keys = model.heads.keys;
        with_attention(cache, [&](const auto& attention) {
            const int spans = int(slice.spans.size());
            // If there are enough spans, one thread has all heads of a span, which are neighbours in its blocks.
            each_range(crew, spans * keys, spans < 4 * crew.size() ? 1 : keys, [&](int begin, int end) {
                for (int item = begin; item < end; ++item)
                    attention.run(slice.spans[item / keys], item % keys, qkv(), width(), outputs, slice.first);
            });
        });
        done(ATTENTION);
    }
};
