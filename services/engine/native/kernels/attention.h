// Attention over the block table: nothing is gathered, nothing is padded.
//
// A query goes through its keys in tiles that begin at multiples of KEYS, each sum in one order: its output is bitwise
// the same whether its prompt came at once, in chunks, or was computed again, alone or in company. (Online softmax:
// Milakov and Gimelshein, 2018; tiles: Dao, FlashAttention-2, 2023.)
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "products.h"

constexpr int KEYS = 128;   // of a tile
constexpr int HEIGHT = 42;  // rows of a tile of queries: queries times the heads that share a key head

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
    // Where what is kept of a block for a head begins: keys [dim][block_size], values [block_size][dim].
    size_t at(int block, int head) const { return (size_t(block) * keys + head) * block_size * dim; }

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
        const Scratch s = scratch(rows, dim, padded);
        for (int tile = 0; tile < own.tiles; ++tile)
            turn(own.rows_of(tile), s.queries + size_t(tile) * dim * ROWS, [&](int r) {
                const int row = tile * own.height + r;
                return query + size_t(first_token + row / group) * width + (head * group + row % group) * dim;
            });
        std::fill_n(s.highest, rows, -INFINITY);
        std::fill_n(s.totals, size_t(rows) * LANES, 0.0f);
        std::fill_n(s.outputs, size_t(rows) * padded, 0.0f);
        for (int begin = 0; begin < length; begin += KEYS) {
            const int count = std::min(KEYS, length - begin);
            const int ahead = std::min(KEYS, length - begin - count);
            scores(s, own, span.request, head, begin, count, ahead);
            for (int row = 0; row < rows; ++row) raise(s, row, count, first_position + row / group + 1 - begin, padded);
            for (int row = 0; row < rows; ++row) weigh(s, row, count);
            collect(s, own, span.request, head, begin, count, ahead);
        }
        for (int row = 0; row < rows; ++row) {
            const float share = 1.0f / total(load(s.totals + size_t(row) * LANES));
            float* to = packed + tiles.at(first_token + row / group, depth) + size_t(head * group + row % group) * dim * ROWS;
            for (int d = 0; d < dim; ++d) to[d * ROWS] = s.outputs[size_t(row) * padded + d] * share;
        }
    }

private:
    struct Scratch {
        float *queries, *keys, *values, *weights, *outputs, *highest, *totals;
    };

    // Each begins on a cache line: a vector that lies across two costs twice.
    static Scratch scratch(int rows, int dim, int padded) {
        thread_local Numbers memory;
        size_t taken = 0;
        const auto take = [&](size_t size) { return std::exchange(taken, taken + (size + 15) / 16 * 16); };
        const size_t queries = take(size_t(Tiles(rows).tiles) * ROWS * dim), keys = take(size_t(KEYS) * dim);
        const size_t values = take(size_t(KEYS) * padded), weights = take(size_t(rows) * KEYS);
        const size_t outputs = take(size_t(rows) * padded), highest = take(rows), totals = take(size_t(rows) * LANES);
        if (memory.size() < taken) memory.resize(taken);
        float* m = memory.data();
        return {m + queries, m + keys, m + values, m + weights, m + outputs, m + highest, m + totals};
    }

    const int32_t* table(int request) const { return batch_.tables + batch_.table_starts[request]; }

    // `count` queries, row r at from(r), scaled, as a tile of rows.
    template <class From>
    void turn(int count, float* to, const From& from) const {
        int d = 0;
        for (; d + LANES <= heads_.dim; d += LANES) {
            Vector square[LANES] = {};
            for (int r = 0; r < count; ++r) square[r] = load(from(r) + d) * heads_.scaling;
            store_turned(to + size_t(d) * ROWS, square, LANES);
        }
        for (; d < heads_.dim; ++d)
            for (int r = 0; r < count; ++r) to[size_t(d) * ROWS + r] = from(r)[d] * heads_.scaling;
    }

    // The tile's scores, read where the keys are if its vectors lie in whole blocks, else from a copy.
    void scores(const Scratch& s, const Tiles& own, int request, int head, int begin, int count, int ahead) const {
        const int size = heads_.block_size, dim = heads_.dim;
        auto key = [&](int position) {
            return keys_ + heads_.at(table(request)[position / size], head) + position % size;
        };
        if (size % LANES) {
            for (int j = 0; j < count; ++j) {
                float* column = s.keys + size_t(j / LANES) * dim * LANES + j % LANES;
                const Number* from = key(begin + j);
                for (int d = 0; d < dim; ++d) column[d * LANES] = to_float(from[d * size]);
            }
            for (int j = 0; j < count; j += WIDTH) {
                const float* first = s.keys + size_t(j) * dim;
                score(s, own, j, first, j + LANES < count ? first + LANES * dim : first, LANES, first, first);
            }
            return;
        }
        for (int j = 0; j < count; j += WIDTH) {
            const Number* first = key(begin + j);
            const Number* second = j + LANES < count ? key(begin + j + LANES) : first;
            const Number* later = j < ahead ? key(begin + KEYS + j) : first;
            score(s, own, j, first, second, size, later, j + LANES < ahead ? key(begin + KEYS + j + LANES) : later);
        }
    }

    // The scores of two vectors of keys; what follows the tile is asked for meanwhile.
    template <class Stored>
    void score(const Scratch& s, const Tiles& own, int j, const Stored* first, const Stored* second, int step,
               const Stored* later, const Stored* last) const {
        const int dim = heads_.dim;
        for (int tile = 0; tile < own.tiles; ++tile)
            with_rows(own.rows_of(tile), [&](auto R) {
                Vector sums[R][2] = {};
                const auto fetch = [&](const Stored* one, const Stored* other) {
                    if (tile) return;
                    __builtin_prefetch(one + (later - first), 0, 2);
                    __builtin_prefetch(other + (last - second), 0, 2);
                };
                add_products<R, 1>(sums, dim, s.queries + size_t(tile) * dim * ROWS, ROWS, first, second, step, fetch);
                for (int r = 0; r < R; ++r) {
                    float* to = s.weights + size_t(tile * own.height + r) * KEYS + j;
                    store(to, sums[r][0]);
                    store(to + LANES, sums[r][1]);
                }
            });
    }

    // Finds the highest score of a row so far, of `count` keys those below `visible`; what was collected is scaled by it.
    void raise(const Scratch& s, int row, int count, int visible, int padded) const {
        float* scores = s.weights + size_t(row) * KEYS;
        for (int j = std::max(0, visible); j < whole(count); ++j) scores[j] = -INFINITY;
        Vector best = broadcast(-INFINITY);
        for (int j = 0; j < count; j += LANES) best = larger(load(scores + j), best);
        const float before = s.highest[row], now = std::max(before, highest(best));
        if (now == before) return;
        s.highest[row] = now;
        const Vector shrink = broadcast(exponential(broadcast(before - now))[0]);
        const auto scale = [&](float* at) { store(at, load(at) * shrink); };
        scale(s.totals + size_t(row) * LANES);
        for (int d = 0; d < padded; d += LANES) scale(s.outputs + size_t(row) * padded + d);
    }

    // Scores to weights exp(score - highest). Apart from `raise`, so that no row waits for the one before it.
    void weigh(const Scratch& s, int row, int count) const {
        float *weights = s.weights + size_t(row) * KEYS, *totals = s.totals + size_t(row) * LANES;
        const Vector now = broadcast(s.highest[row]);
        Vector sum = load(totals);
        for (int j = 0; j < count; j += LANES) {
            const Vector weight = exponential(load(weights + j) - now);
            store(weights + j, weight);
            sum += weight;
        }
        store(totals, sum);
    }

    static int whole(int count) { return (count + LANES - 1) / LANES * LANES; }

    // Values of `count` positions that lie one after the other, and where those a tile later do.
    template <class Stored>
    struct Run {
        const Stored *from, *later;
        int count;
    };

    // Adds the tile's values by their weights, read where they are if a head is whole panels, else from a copy.
    void collect(const Scratch& s, const Tiles& own, int request, int head, int begin, int count, int ahead) const {
        const int size = heads_.block_size, dim = heads_.dim, padded = heads_.padded_dim();
        auto value = [&](int position) {
            return values_ + heads_.at(table(request)[position / size], head) + size_t(position % size) * dim;
        };
        if (dim != padded) {
            for (int j = 0; j < count; ++j) {
                const Number* from = value(begin + j);
                for (int d = 0; d < dim; ++d) s.values[size_t(j) * padded + d] = to_float(from[d]);
            }
            const Run<float> copy{s.values, s.values, count};
            return add(s, own, &copy, 1);
        }
        Run<Number> runs[KEYS];
        int found = 0;
        for (int j = 0; j < count; j += runs[found++].count) {
            const Number* from = value(begin + j);
            runs[found] = {from, j < ahead ? value(begin + KEYS + j) : from, std::min(count - j, size - (begin + j) % size)};
        }
        add(s, own, runs, found);
    }

    template <class Stored>
    void add(const Scratch& s, const Tiles& own, const Run<Stored>* runs, int count) const {
        const int padded = heads_.padded_dim();
        for (int d = 0; d < padded; d += WIDTH)
            for (int tile = 0; tile < own.tiles; ++tile)
                with_rows(own.rows_of(tile), [&](auto R) {
                    const int row = tile * own.height;
                    float* outputs = s.outputs + size_t(row) * padded + d;
                    const float* weights = s.weights + size_t(row) * KEYS;
                    Vector sums[R][2];
                    for (int r = 0; r < R; ++r) {
                        sums[r][0] = load(outputs + size_t(r) * padded);
                        sums[r][1] = load(outputs + size_t(r) * padded + LANES);
                    }
                    for (const Run<Stored>* run = runs; run < runs + count; weights += run->count, ++run) {
                        const ptrdiff_t later = run->later - run->from;
                        const auto fetch = [&](const Stored* one, const Stored* other) {
                            if (tile) return;
                            __builtin_prefetch(one + later, 0, 2);
                            __builtin_prefetch(other + later, 0, 2);
                        };
                        const Stored* from = run->from + d;
                        add_products<R, KEYS>(sums, run->count, weights, 1, from, from + LANES, padded, fetch);
                    }
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
