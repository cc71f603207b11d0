// Attention over the block table: nothing is gathered, nothing is padded.
//
// A query goes through its keys in tiles that begin at multiples of KEYS, each sum in one order: its output is bitwise
// the same whether its prompt came at once, in chunks, or was computed again, alone or in company. (Online softmax:
// Milakov and Gimelshein, 2018; tiles: Dao, FlashAttention-2, 2023.)
#pragma once

#include <cmath>
#include <vector>

#include "products.h"

constexpr int KEYS = 64;    // of a tile
constexpr int HEIGHT = 48;  // rows of a tile of queries: queries times the heads that share a key head

struct Batch {
    int32_t tokens, requests, samples;
    const int32_t* starts;        // [requests + 1], flat index of each request's first token
    const int32_t* contexts;      // [requests], tokens computed before
    const int32_t* table_starts;  // [requests + 1], into `tables`
    const int32_t* tables;        // block ids
    const int32_t* ends;          // [samples], flat indices
};

struct Heads {
    int32_t queries, keys, dim, block_size;
    float scaling;

    int group() const { return queries / keys; }
    int padded_dim() const { return (dim + WIDTH - 1) / WIDTH * WIDTH; }
};

// Some queries of one request.
struct Span {
    int request, first, count;  // of the request's tokens in this iteration
};

inline std::vector<Span> spans_of(const Batch& batch, const Heads& heads) {
    const int most = std::max(1, HEIGHT / heads.group());
    std::vector<Span> spans;
    for (int r = 0; r < batch.requests; ++r)
        for (int first = 0, count = batch.starts[r + 1] - batch.starts[r]; first < count; first += most)
            spans.push_back({r, first, std::min(most, count - first)});
    return spans;
}

template <class Number>
class Attention {
public:
    Attention(const Batch& batch, const Heads& heads, const Number* keys, const Number* values)
        : batch_(batch), heads_(heads), keys_(keys), values_(values) {}

    // Writes the outputs of one span and key head: query [tokens, width], output in tiles of `width_out` depth.
    void run(const Span& span, int head, const float* query, int width, float* packed, const Tiles& tiles,
             int depth) const {
        const int dim = heads_.dim, group = heads_.group(), rows = span.count * group, padded = heads_.padded_dim();
        const int first_position = batch_.contexts[span.request] + span.first;
        const int first_token = batch_.starts[span.request] + span.first;
        const int length = first_position + span.count;
        const Tiles own(rows);
        Scratch& s = scratch(rows, dim, padded);
        for (int row = 0; row < rows; ++row) {
            const float* from = query + size_t(first_token + row / group) * width + (head * group + row % group) * dim;
            for (int d = 0; d < dim; ++d) s.queries[own.at(row, dim) + d * ROWS] = from[d] * heads_.scaling;
            s.highest[row] = -INFINITY;
            s.total[row] = 0;
        }
        std::fill_n(s.outputs.begin(), size_t(rows) * padded, 0.0f);
        for (int begin = 0; begin < length; begin += KEYS) {
            const int count = std::min(KEYS, length - begin);
            fetch(s, span.request, head, begin, count);
            scores(s, own, count);
            for (int row = 0; row < rows; ++row) weigh(s, row, first_position + row / group + 1 - begin, padded);
            collect(s, own, count, padded);
        }
        for (int row = 0; row < rows; ++row) {
            const float share = 1.0f / s.total[row];
            float* to = packed + tiles.at(first_token + row / group, depth) + size_t(head * group + row % group) * dim * ROWS;
            for (int d = 0; d < dim; ++d) to[d * ROWS] = s.outputs[size_t(row) * padded + d] * share;
        }
    }

private:
    struct Scratch {
        std::vector<float> queries, keys, values, weights, outputs, highest, total;
    };

    static Scratch& scratch(int rows, int dim, int padded) {
        thread_local Scratch s;
        auto grow = [](std::vector<float>& v, size_t size) {
            if (v.size() < size) v.resize(size);
        };
        grow(s.queries, size_t(rows + ROWS) * ROWS * dim);
        grow(s.keys, size_t(KEYS) * dim);
        grow(s.values, size_t(KEYS) * padded);
        grow(s.weights, size_t(rows) * KEYS);
        grow(s.outputs, size_t(rows) * padded);
        grow(s.highest, rows);
        grow(s.total, rows);
        return s;
    }

    // A tile's keys as panels [KEYS / WIDTH][dim][WIDTH], and its values as panels [padded / WIDTH][KEYS][WIDTH].
    void fetch(Scratch& s, int request, int head, int begin, int count) const {
        const int dim = heads_.dim;
        const int32_t* table = batch_.tables + batch_.table_starts[request];
        for (int j = 0; j < count; ++j) {
            const int position = begin + j;
            const size_t slot = size_t(table[position / heads_.block_size]) * heads_.block_size + position % heads_.block_size;
            const Number* key = keys_ + (slot * heads_.keys + head) * dim;
            const Number* value = values_ + (slot * heads_.keys + head) * dim;
            float* column = s.keys.data() + size_t(j / WIDTH) * dim * WIDTH + j % WIDTH;
            for (int d = 0; d < dim; ++d) column[d * WIDTH] = to_float(key[d]);
            for (int d = 0; d < dim; ++d)
                s.values[size_t(d / WIDTH) * KEYS * WIDTH + j * WIDTH + d % WIDTH] = to_float(value[d]);
        }
    }

    void scores(Scratch& s, const Tiles& own, int count) const {
        const int dim = heads_.dim;
        for (int panel = 0; panel * WIDTH < count; ++panel)
            for (int tile = 0; tile < own.tiles; ++tile)
                with_rows(own.rows_of(tile), [&](auto R) {
                    Vector sums[R][2] = {};
                    add_products<R, 1>(sums, dim, s.queries.data() + size_t(tile) * dim * ROWS, ROWS,
                                       s.keys.data() + size_t(panel) * dim * WIDTH);
                    for (int r = 0; r < R; ++r) {
                        float* to = s.weights.data() + size_t(tile * own.height + r) * KEYS + panel * WIDTH;
                        store(to, sums[r][0]);
                        store(to + LANES, sums[r][1]);
                    }
                });
    }

    // Scores to weights exp(score - highest), those of keys from `visible` on to 0; what was collected is scaled.
    void weigh(Scratch& s, int row, int visible, int padded) const {
        float* weights = s.weights.data() + size_t(row) * KEYS;
        for (int j = std::max(0, visible); j < KEYS; ++j) weights[j] = -INFINITY;
        Vector best = broadcast(-INFINITY);
        for (int j = 0; j < KEYS; j += LANES) best = larger(load(weights + j), best);
        const float before = s.highest[row], now = std::max(before, highest(best));
        Vector sum = {};
        for (int j = 0; j < KEYS; j += LANES) {
            Vector weight = exponential(load(weights + j) - now);
            store(weights + j, weight);
            sum += weight;
        }
        const float shrink = now == before ? 1.0f : exponential(broadcast(before - now))[0];
        s.total[row] = s.total[row] * shrink + total(sum);
        s.highest[row] = now;
        if (shrink != 1.0f)
            for (int d = 0; d < padded; d += LANES) {
                float* output = s.outputs.data() + size_t(row) * padded + d;
                store(output, load(output) * shrink);
            }
    }

    void collect(Scratch& s, const Tiles& own, int count, int padded) const {
        for (int d = 0; d < padded; d += WIDTH)
            for (int tile = 0; tile < own.tiles; ++tile)
                with_rows(own.rows_of(tile), [&](auto R) {
                    const int row = tile * own.height;
                    float* outputs = s.outputs.data() + size_t(row) * padded + d;
                    Vector sums[R][2];
                    for (int r = 0; r < R; ++r) {
                        sums[r][0] = load(outputs + size_t(r) * padded);
                        sums[r][1] = load(outputs + size_t(r) * padded + LANES);
                    }
                    add_products<R, KEYS>(sums, count, s.weights.data() + size_t(row) * KEYS, 1,
                                          s.values.data() + size_t(d) * KEYS);
                    for (int r = 0; r < R; ++r) {
                        store(outputs + size_t(r) * padded, sums[r][0]);
                        store(outputs + size_t(r) * padded + LANES, sums[r][1]);
                    }
                });
    }

    const Batch& batch_;
    const Heads& heads_;
    const Number* keys_;
    const Number* values_;
};
