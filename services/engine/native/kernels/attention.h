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

constexpr int KEYS = 256;   // of a tile
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

template <class Number>
class Attention {
public:
    Attention(const Batch& batch, const Heads& heads, const Number* keys, const Number* values)
        : batch_(batch), heads_(heads), keys_(keys), values_(values) {}

    // Writes the outputs of one span and key head: query [tokens, width], output in tiles of the rows from `origin` on.
    void run(const Span& span, int head, const float* query, int width, float* packed, const Tiles& tiles,
             int origin) const {
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
        std::fill_n(s.highest, own.tiles * LANES, -INFINITY);
        std::fill_n(s.totals, size_t(rows) * LANES, 0.0f);
        std::fill_n(s.outputs, size_t(rows) * padded, 0.0f);
        for (int begin = 0; begin < length; begin += KEYS) {
            const int count = std::min(KEYS, length - begin);
            const int ahead = std::min(KEYS, length - begin - count);
            std::fill_n(s.best, size_t(rows) * LANES, -INFINITY);
            scores(s, own, span.request, head, begin, count, ahead, first_position + 1 - begin);
            for (int tile = 0; tile < own.tiles; ++tile) raise(s, own, tile);
            for (int tile = 0; tile < own.tiles; ++tile) weigh(s, own, tile, count);
            collect(s, own, span.request, head, begin, count, ahead);
        }
        const int token = first_token - origin;
        for (int of = 0; of < group; ++of) put(s, of, group, span.count, token, head * group + of, packed, tiles);
    }

private:
    struct Scratch {
        float *queries, *keys, *values, *weights, *outputs;
        float *best;     // [rows][LANES]: of the tile's scores, the highest in each lane
        float *highest;  // [tiles][LANES]: of each row's scores so far
        float *shrink;   // likewise: what is collected is to be multiplied by it
        float *totals;   // [rows][LANES]
    };

    // Each begins on a cache line: a vector that lies across two costs twice.
    static Scratch scratch(int rows, int dim, int padded) {
        thread_local Numbers memory;
        const int tiles = Tiles(rows).tiles;
        size_t taken = 0;
        const auto take = [&](size_t size) { return std::exchange(taken, taken + (size + 15) / 16 * 16); };
        const size_t queries = take(size_t(tiles) * ROWS * dim), keys = take(size_t(KEYS) * dim);
        const size_t values = take(size_t(KEYS) * padded), weights = take(size_t(rows) * KEYS);
        const size_t outputs = take(size_t(rows) * padded), best = take(size_t(rows) * LANES);
        const size_t highest = take(size_t(tiles) * LANES), shrink = take(size_t(tiles) * LANES);
        const size_t totals = take(size_t(rows) * LANES);
        if (memory.size() < taken) memory.resize(taken);
        float* m = memory.data();
        return {m + queries, m + keys,    m + values, m + weights, m + outputs,
                m + best,    m + highest, m + shrink, m + totals};
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

    // One head's outputs of `count` tokens from `token` on.
    void put(const Scratch& s, int of, int group, int count, int token, int head, float* packed,
             const Tiles& tiles) const {
        const int dim = heads_.dim, padded = heads_.padded_dim();
        for (int row = of; row < count * group; row += group) {
            const Vector share = broadcast(1.0f / total(load(s.totals + size_t(row) * LANES)));
            float* outputs = s.outputs + size_t(row) * padded;
            for (int d = 0; d < padded; d += LANES) store(outputs + d, load(outputs + d) * share);
        }
        for (int done = 0, some; done < count; done += some) {  // as many as are neighbours in a tile
            some = std::min(count - done, tiles.height - (token + done) % tiles.height);
            float* to = packed + tiles.at(token + done, heads_.queries * dim) + size_t(head) * dim * ROWS;
            turn_back(some, s.outputs + size_t(done * group + of) * padded, size_t(group) * padded, to);
        }
    }

    // `count` rows of outputs, `step` apart, to neighbours in a tile whose other rows are left alone.
    void turn_back(int count, const float* from, size_t step, float* to) const {
        for (int d = 0; d < heads_.dim; d += LANES) {
            Vector square[LANES] = {};
            for (int r = 0; r < count; ++r) square[r] = load(from + r * step + d);
            transpose(square);
            for (int k = 0; k < std::min(LANES, heads_.dim - d); ++k)
                store_some(to + size_t(d + k) * ROWS, square[k], count);
        }
    }

    // The tile's scores, read where the keys are if its vectors lie in whole blocks, else from a copy. The first
    // token sees the keys below `visible`.
    void scores(const Scratch& s, const Tiles& own, int request, int head, int begin, int count, int ahead,
                int visible) const {
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
                const float* second = j + LANES < count ? first + LANES * dim : first;
                score(s, own, j, first, second, LANES, first, first, visible);
            }
            return;
        }
        for (int j = 0; j < count; j += WIDTH) {
            const Number* first = key(begin + j);
            const Number* second = j + LANES < count ? key(begin + j + LANES) : first;
            const Number* later = j < ahead ? key(begin + KEYS + j) : first;
            const Number* last = j + LANES < ahead ? key(begin + KEYS + j + LANES) : later;
            score(s, own, j, first, second, size, later, last, visible);
        }
    }

    // The scores of two vectors of keys; what follows the tile is asked for meanwhile.
    template <class Stored>
    void score(const Scratch& s, const Tiles& own, int j, const Stored* first, const Stored* second, int step,
               const Stored* later, const Stored* last, int visible) const {
        const int dim = heads_.dim;
        const Run<Stored> run{first, second, dim, later - first, last - second};
        for (int tile = 0; tile < own.tiles; ++tile)
            with_rows(own.rows_of(tile), [&](auto R) {
                Vector sums[R][2];
                const float* queries = s.queries + size_t(tile) * dim * ROWS;
                sum_products<R, 1, true>(sums, queries, ROWS, &run, 1, step, Once{tile == 0});
                if (visible < j + WIDTH)
                    for (int r = 0; r < R; ++r) hide(sums[r], visible + (tile * own.height + r) / heads_.group() - j);
                for (int r = 0; r < R; ++r) {
                    const int row = tile * own.height + r;
                    float *to = s.weights + size_t(row) * KEYS + j, *best = s.best + size_t(row) * LANES;
                    store(to, sums[r][0]);
                    store(to + LANES, sums[r][1]);
                    store(best, larger(larger(sums[r][0], sums[r][1]), load(best)));
                }
            });
    }

    // Leaves the first `visible` of two vectors of scores.
    static void hide(Vector (&scores)[2], int visible) {
        for (Vector& v : scores) {
            v = numbers() < float(visible) ? v : broadcast(-INFINITY);
            visible -= LANES;
        }
    }

    // The highest scores of a tile's rows so far, and how what was collected shrinks beside them.
    void raise(const Scratch& s, const Tiles& own, int tile) const {
        Vector square[LANES];
        const float* best = s.best + size_t(tile * own.height) * LANES;
        for (int r = 0; r < LANES; ++r) square[r] = load(best + (r < own.rows_of(tile) ? r : 0) * LANES);
        transpose(square);
        const Vector before = load(s.highest + tile * LANES);
        Vector now = before;
        for (const Vector& column : square) now = larger(column, now);
        store(s.highest + tile * LANES, now);
        store(s.shrink + tile * LANES, exponential(before - now));
    }

    // Scores of a tile's rows to weights exp(score - highest).
    void weigh(const Scratch& s, const Tiles& own, int tile, int count) const {
        for (int r = 0; r < own.rows_of(tile); ++r) {
            const size_t row = size_t(tile * own.height + r);
            float *weights = s.weights + row * KEYS, *totals = s.totals + row * LANES;
            const Vector now = broadcast(s.highest[tile * LANES + r]);
            Vector sum = load(totals) * s.shrink[tile * LANES + r];
            for (int j = 0; j < count; j += LANES) {
                const Vector weight = exponential(load(weights + j) - now);
                store(weights + j, weight);
                sum += weight;
            }
            store(totals, sum);
        }
    }

    // Asks for what is needed later, once for all tiles of queries.
    struct Once {
        bool now;

        template <class Stored>
        void operator()(const Run<Stored>& run, const Stored* first, const Stored* second) const {
            if (!now) return;
            __builtin_prefetch(first + run.later_first, 0, 2);
            __builtin_prefetch(second + run.later_second, 0, 2);
        }
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
            Run<float> copy{s.values, s.values + LANES, count};
            return add(s, own, &copy, 1);
        }
        Run<Number> runs[KEYS];
        int found = 0;
        for (int j = 0; j < count; j += runs[found++].count) {
            const Number* from = value(begin + j);
            const ptrdiff_t later = j < ahead ? value(begin + KEYS + j) - from : 0;
            runs[found] = {from, from + LANES, std::min(count - j, size - (begin + j) % size), later, later};
        }
        add(s, own, runs, found);
    }

    template <class Stored>
    void add(const Scratch& s, const Tiles& own, Run<Stored>* runs, int count) const {
        const int padded = heads_.padded_dim();
        for (int d = 0; d < padded; d += WIDTH) {
            for (Run<Stored>* run = runs; d && run < runs + count; ++run) run->first += WIDTH, run->second += WIDTH;
            for (int tile = 0; tile < own.tiles; ++tile)
                with_rows(own.rows_of(tile), [&](auto R) {
                    const int row = tile * own.height;
                    float* outputs = s.outputs + size_t(row) * padded + d;
                    const float *weights = s.weights + size_t(row) * KEYS, *shrink = s.shrink + tile * LANES;
                    Vector sums[R][2];
                    for (int r = 0; r < R; ++r)
                        for (int half = 0; half < 2; ++half)
                            sums[r][half] = load(outputs + size_t(r) * padded + half * LANES) * shrink[r];
                    sum_products<R, KEYS, false>(sums, weights, 1, runs, count, padded, Once{tile == 0});
                    for (int r = 0; r < R; ++r)
                        for (int half = 0; half < 2; ++half)
                            store(outputs + size_t(r) * padded + half * LANES, sums[r][half]);
                });
        }
    }

    const Batch& batch_;
    const Heads& heads_;
    const Number* keys_;
    const Number* values_;
};
