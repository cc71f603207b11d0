// The halves of a layer: attention and the MLP.
#pragma once

#include <omp.h>

#include <algorithm>

#include "pointwise.h"

// Sums times scale plus bias, LANES columns from `column` on; those past the end are not to be used.
inline Vector finished(const Matrix& m, int column, Vector sums) {
    if (column + LANES <= m.outputs) {
        if (m.scales) sums *= load(m.scales + column);
        return m.bias ? sums + load(m.bias + column) : sums;
    }
    for (int i = 0; column + i < m.outputs; ++i)
        sums[i] = sums[i] * (m.scales ? m.scales[column + i] : 1.0f) + (m.bias ? m.bias[column + i] : 0.0f);
    return sums;
}

// A product whose rows are written, or added, to `to` [rows, outputs].
struct Product {
    const Matrix& matrix;
    float* to;
    bool add;

    void run(Team& team, const float* packed, int rows) const {
        const auto finish = [&](int panel, int row, auto& sums) {
            for (auto& both : sums) {
                float* at = to + size_t(row++) * matrix.outputs;
                for (int half = 0; half < 2; ++half) put(at, panel * WIDTH + half * LANES, both[half]);
            }
        };
        multiply(team, matrix, packed, rows, finish, [&](int panel, int row, int count) {
            for (int r = row; r < row + count; ++r)
                for (int half = 0; half < 2; ++half)
                    __builtin_prefetch(to + size_t(r) * matrix.outputs + panel * WIDTH + half * LANES, 1);
        });
    }

private:
    void put(float* row, int column, Vector sums) const {
        const int count = std::min(LANES, matrix.outputs - column);
        if (count <= 0) return;
        const Vector v = finished(matrix, column, sums);
        if (count == LANES) return store(row + column, add ? load(row + column) + v : v);
        for (int i = 0; i < count; ++i) row[column + i] = add ? row[column + i] + v[i] : v[i];
    }
};

// One call of a model's layers in one thread of the team.
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

    // Normalised rows, in tiles: row i is the token `token(i)`.
    template <class Token>
    void norm(const Norm& norm, const float* x, float* packed, const Token& token) {
        team.each(tiles.tiles, [&](int tile) {
            const float* rows[ROWS];
            const int count = tiles.rows_of(tile);
            for (int r = 0; r < count; ++r) rows[r] = x + size_t(token(tile * tiles.height + r)) * model.hidden;
            normalise(model, norm, rows, count, packed + size_t(tile) * model.hidden * ROWS);
        });
        done(NORMS);
    }

    void norm(const Norm& of, const float* x, float* packed) {
        norm(of, x, packed, [](int row) { return row; });
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
        float* next = buffers.next.data();
        const int depth = layer.down.inputs;
        const auto finish = [&](int panel, int row, auto& sums) {
            float* tile = next + tiles.at(row, depth);
            for (int half = 0; half < (model.gated ? 1 : 2); ++half) {
                const int column = panel * WIDTH + half * LANES;
                const int from = model.gated ? panel * LANES : column;
                Vector square[LANES] = {};
                int r = 0;
                for (auto& both : sums) {
                    const Vector v = finished(layer.up, column, both[half]);
                    square[r++] = model.gated ? silu(v) * finished(layer.up, column + LANES, both[1]) : gelu(v);
                }
                if (from < depth) store_turned(tile + size_t(from) * ROWS, square, std::min(LANES, depth - from));
            }
        };
        const int columns = model.gated ? LANES : WIDTH;
        multiply(team, layer.up, buffers.packed.data(), batch.tokens, finish, [&](int panel, int row, int) {
            const float* at = next + tiles.at(row, depth) + size_t(panel) * columns * ROWS;
            for (int i = 0; i < columns * ROWS; i += 16) __builtin_prefetch(at + i, 1);
        });
        product(layer.down, next, batch.tokens, to, add, MLP);
    }
};
