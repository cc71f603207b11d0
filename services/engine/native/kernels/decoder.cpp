// A decoder's layers over a flat batch: what Python calls.

#include <omp.h>

#include <algorithm>

#include "attention.h"
#include "packing.h"

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

// What one half hands to the next, in tiles where it goes into a product; grown as needed.
struct Buffers {
    Numbers qkv, packed, next;
    double seconds[6] = {};  // spent in each Phase
};

enum Phase { NORMS, PROJECTIONS, PLACING, ATTENTION, MLP, VOCABULARY };

struct Model {
    int32_t hidden, intermediate, layer_norm, gated, bfloat16_cache, threads;
    float epsilon;
    Heads heads;
    const float* cosines;  // [positions, dim / 2], or null where positions are embedded
    const float* sines;
    const Layer* layers;
    Norm last_norm;
    Matrix vocabulary;
    Buffers* buffers;
};

namespace {

void normalise(const Model& model, const Norm& norm, const float* x, float* to) {
    const int size = model.hidden;
    float mean = 0, squares = 0;
    if (model.layer_norm) {
        for (int i = 0; i < size; ++i) mean += x[i];
        mean /= size;
    }
    Vector sum = {};
    int i = 0;
    for (; i + LANES <= size; i += LANES) {
        Vector v = load(x + i) - mean;
        sum += v * v;
    }
    squares = total(sum);
    for (; i < size; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / std::sqrt(squares / size + model.epsilon);
    for (i = 0; i < size; ++i) to[i * ROWS] = (x[i] - mean) * scale * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
}

void normalise_head(float* x, int dim, const float* weight, float epsilon) {
    float squares = 0;
    for (int i = 0; i < dim; ++i) squares += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(squares / dim + epsilon);
    for (int i = 0; i < dim; ++i) x[i] *= scale * weight[i];
}

void rotate(float* x, int dim, const float* cosines, const float* sines) {
    const int half = dim / 2;
    for (int i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = b * cosines[i] + a * sines[i];
    }
}

Vector silu(Vector x) { return x / (1.0f + exponential(-x)); }

Vector gelu(Vector x) {  // its tanh form, as GPT-2 has it
    const Vector u = 0.7978845608f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (2.0f - 2.0f / (exponential(2.0f * u) + 1.0f));
}

// Sums times scale plus bias, LANES columns from `column` on; those past the end are not to be used.
Vector finished(const Matrix& m, int column, Vector sums) {
    if (column + LANES <= m.outputs) {
        if (m.scales) sums *= load(m.scales + column);
        return m.bias ? sums + load(m.bias + column) : sums;
    }
    for (int i = 0; column + i < m.outputs; ++i)
        sums[i] = sums[i] * (m.scales ? m.scales[column + i] : 1.0f) + (m.bias ? m.bias[column + i] : 0.0f);
    return sums;
}

// Calls put(column, count, numbers) for the two halves of a panel's row.
template <class Put>
void each_half(const Matrix& m, int panel, Vector first, Vector second, const Put& put) {
    const int column = panel * WIDTH;
    put(column, std::min(LANES, m.outputs - column), finished(m, column, first));
    if (column + LANES < m.outputs)
        put(column + LANES, std::min(LANES, m.outputs - column - LANES), finished(m, column + LANES, second));
}

// A product whose rows are written, or added, to `to` [rows, outputs].
struct Product {
    const Matrix& matrix;
    float* to;
    bool add;

    void run(Team& team, const float* packed, int rows) const {
        multiply(team, matrix, packed, rows, [&](int panel, int row, Vector first, Vector second) {
            each_half(matrix, panel, first, second, [&](int column, int count, Vector v) {
                float* at = to + size_t(row) * matrix.outputs + column;
                if (count == LANES) return store(at, add ? load(at) + v : v);
                for (int i = 0; i < count; ++i) at[i] = add ? at[i] + v[i] : v[i];
            });
        });
    }
};

struct Call {
    const Model& model;
    const Batch& batch;
    Buffers& buffers;
    Team& team;
    Tiles tiles;
    bool told = omp_get_thread_num() == 0;  // one thread keeps the time: phases end for all at once
    double began = omp_get_wtime();

    void done(Phase phase) {
        if (!told) return;
        const double now = omp_get_wtime();
        buffers.seconds[phase] += now - began;
        began = now;
    }

    void norm(const Norm& norm, const float* x, float* packed) {
        team.ranges(batch.tokens, 16, [&](int begin, int end) {
            for (int t = begin; t < end; ++t)
                normalise(model, norm, x + size_t(t) * model.hidden, packed + tiles.at(t, model.hidden));
        });
        done(NORMS);
    }

    void product(const Matrix& matrix, const float* packed, int rows, float* to, bool add, Phase phase) {
        Product{matrix, to, add}.run(team, packed, rows);
        done(phase);
    }

    template <class Number>
    void place(const Layer& layer, int token, int request) {
        const Heads& heads = model.heads;
        const int dim = heads.dim, width = (heads.queries + 2 * heads.keys) * dim;
        const int position = batch.contexts[request] + token - batch.starts[request];
        const int32_t* table = batch.tables + batch.table_starts[request];
        const int32_t block = table[position / heads.block_size];
        float* row = buffers.qkv.data() + size_t(token) * width;
        for (int head = 0; head < heads.queries + heads.keys; ++head) {
            float* x = row + head * dim;
            const float* weight = head < heads.queries ? layer.query_norm : layer.key_norm;
            if (weight) normalise_head(x, dim, weight, model.epsilon);
            if (model.cosines)
                rotate(x, dim, model.cosines + size_t(position) * dim / 2, model.sines + size_t(position) * dim / 2);
        }
        const float *key = row + heads.queries * dim, *value = key + heads.keys * dim;
        for (int head = 0; head < heads.keys; ++head, key += dim, value += dim) {
            const int offset = position % heads.block_size;
            Number* keys = static_cast<Number*>(layer.keys) + heads.at(block, head) + offset;
            Number* values = static_cast<Number*>(layer.values) + heads.at(block, head) + size_t(offset) * dim;
            for (int i = 0; i < dim; ++i) from_float(keys[size_t(i) * heads.block_size], key[i]);
            for (int i = 0; i < dim; ++i) from_float(values[i], value[i]);
        }
    }

    template <class Number>
    void attend(const Layer& layer, const std::vector<Span>& spans, const std::vector<int>& owners) {
        const Heads& heads = model.heads;
        const int width = (heads.queries + 2 * heads.keys) * heads.dim;
        team.ranges(batch.tokens, 16, [&](int begin, int end) {
            for (int t = begin; t < end; ++t) place<Number>(layer, t, owners[t]);
        });
        done(PLACING);
        const Attention<Number> attention(batch, heads, static_cast<const Number*>(layer.keys),
                                          static_cast<const Number*>(layer.values));
        team.each(int(spans.size()) * heads.keys, [&](int item) {
            attention.run(spans[item / heads.keys], item % heads.keys, buffers.qkv.data(), width,
                          buffers.next.data(), tiles, heads.queries * heads.dim);
        });
        done(ATTENTION);
    }

    void attention_half(const Layer& layer, const float* x, float* to, bool add, const std::vector<Span>& spans,
                        const std::vector<int>& owners) {
        norm(layer.attention_norm, x, buffers.packed.data());
        product(layer.qkv, buffers.packed.data(), batch.tokens, buffers.qkv.data(), false, PROJECTIONS);
        if (model.bfloat16_cache)
            attend<bfloat16>(layer, spans, owners);
        else
            attend<float>(layer, spans, owners);
        product(layer.output, buffers.next.data(), batch.tokens, to, add, PROJECTIONS);
    }

    void mlp_half(const Layer& layer, const float* x, float* to, bool add) {
        norm(layer.mlp_norm, x, buffers.packed.data());
        const int depth = layer.down.inputs;
        float* next = buffers.next.data();
        auto put = [&](int row, int column, int count, Vector v) {
            float* at = next + tiles.at(row, depth) + size_t(column) * ROWS;
            for (int i = 0; i < count; ++i) at[i * ROWS] = v[i];
        };
        multiply(team, layer.up, buffers.packed.data(), batch.tokens, [&](int panel, int row, Vector first, Vector second) {
            if (model.gated) {
                const int column = panel * WIDTH;
                const Vector gate = finished(layer.up, column, first), through = finished(layer.up, column + LANES, second);
                put(row, panel * LANES, std::min(LANES, depth - panel * LANES), silu(gate) * through);
            } else {
                each_half(layer.up, panel, first, second,
                          [&](int column, int count, Vector v) { put(row, column, count, gelu(v)); });
            }
        });
        product(layer.down, next, batch.tokens, to, add, MLP);
    }
};

std::vector<int> owners_of(const Batch& batch) {
    std::vector<int> owners(batch.tokens);
    for (int r = 0; r < batch.requests; ++r) std::fill(owners.begin() + batch.starts[r], owners.begin() + batch.starts[r + 1], r);
    return owners;
}

// Runs work(team) in every thread.
template <class Work>
void together(int threads, const Work& work) {
    Team team(threads);
#pragma omp parallel num_threads(threads)
    work(team);
}

void grow(Numbers& v, size_t size) {
    if (v.size() < size) v.resize(size);
}

size_t padded(int rows) { return size_t(Tiles(rows).tiles) * ROWS; }

}  // namespace

extern "C" {

int orca_width() { return WIDTH; }

Buffers* orca_new_buffers() { return new Buffers; }

// Copies the seconds spent in each Phase so far.
void orca_seconds(const Buffers* buffers, double* seconds) { std::copy_n(buffers->seconds, 6, seconds); }

void orca_delete_buffers(Buffers* buffers) { delete buffers; }

// Packs weights [outputs, inputs], floats or bfloat16, into panels of `kind`; of int8 with one scale for each of the
// panels' columns. `gated`: outputs are gates and then as many that they let through.
void orca_pack(const void* weights, int bfloat16_weights, int outputs, int inputs, int kind, int gated, int threads,
               void* panels, float* scales) {
    auto all = [&](auto packing) {
        together(threads, [&](Team& team) {
            team.each(packing.panels(), [&](int panel) {
                if (kind == 0) packing.pack(panel, static_cast<float*>(panels), nullptr);
                if (kind == 1) packing.pack(panel, static_cast<bfloat16*>(panels), nullptr);
                if (kind == 2) packing.pack(panel, static_cast<int8_t*>(panels), scales);
            });
        });
    };
    if (bfloat16_weights)
        all(Packing<bfloat16>{static_cast<const bfloat16*>(weights), outputs, inputs, gated != 0});
    else
        all(Packing<float>{static_cast<const float*>(weights), outputs, inputs, gated != 0});
}

// to [rows, outputs] = x [rows, inputs] times a matrix.
void orca_multiply(const Matrix* matrix, const float* x, int rows, int threads, float* to) {
    const Tiles tiles(rows);
    Numbers packed(padded(rows) * matrix->inputs);
    together(threads, [&](Team& team) {
        team.ranges(rows, 16, [&](int begin, int end) {
            for (int row = begin; row < end; ++row)
                for (int k = 0; k < matrix->inputs; ++k)
                    packed[tiles.at(row, matrix->inputs) + size_t(k) * ROWS] = x[size_t(row) * matrix->inputs + k];
        });
        Product{*matrix, to, false}.run(team, packed.data(), rows);
    });
}

// Runs the halves [first, last) of layers: 2 * layer is attention, 2 * layer + 1 the MLP. x is [tokens, hidden]. Without
// `partial` each adds to x; with it, one half writes what is to be added, after the other ranks' has been.
void orca_run(const Model* model, const Batch* batch, int first, int last, float* x, float* partial) {
    Buffers& buffers = *model->buffers;
    const Heads& heads = model->heads;
    grow(buffers.qkv, size_t(batch->tokens) * (heads.queries + 2 * heads.keys) * heads.dim);
    grow(buffers.packed, padded(batch->tokens) * model->hidden);
    grow(buffers.next, padded(batch->tokens) * std::max(heads.queries * heads.dim, model->intermediate));
    const std::vector<Span> spans = spans_of(*batch, model->heads);
    const std::vector<int> owners = owners_of(*batch);
    together(model->threads, [&](Team& team) {
        Call call{*model, *batch, buffers, team, Tiles(batch->tokens)};
        for (int half = first; half < last; ++half) {
            const Layer& layer = model->layers[half / 2];
            if (half % 2)
                call.mlp_half(layer, x, partial ? partial : x, !partial);
            else
                call.attention_half(layer, x, partial ? partial : x, !partial, spans, owners);
        }
    });
}

// Logits [samples, vocabulary] after the tokens of batch.ends.
void orca_logits(const Model* model, const Batch* batch, const float* x, float* logits) {
    const int rows = batch->samples;
    if (!rows) return;
    Buffers& buffers = *model->buffers;
    grow(buffers.packed, padded(rows) * model->hidden);
    together(model->threads, [&](Team& team) {
        Call call{*model, *batch, buffers, team, Tiles(rows)};
        team.each(rows, [&](int i) {
            normalise(*model, model->last_norm, x + size_t(batch->ends[i]) * model->hidden,
                      buffers.packed.data() + call.tiles.at(i, model->hidden));
        });
        call.done(NORMS);
        call.product(model->vocabulary, buffers.packed.data(), rows, logits, false, VOCABULARY);
    });
}
}
