// Attention over the block table, without gathering or padding.
//
// A query goes through its keys in tiles that begin at multiples of KEYS, and each sum has one order. So its output is
// bitwise the same for a whole prompt, for chunks, when it is computed again, and in any batch. (Online softmax:
// Milakov and Gimelshein, 2018; tiles: Dao, FlashAttention-2, 2023.) Keys before a query's window have the weight 0,
// which changes no sum, so it does not matter where in a tile reading begins.
#pragma once

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "plain_cache.h"
#include "powers.h"
#include "products.h"

constexpr int KEYS = 256;   // of a tile
// The highest score before the first key. It is finite, so that a tile of which a query sees no key changes nothing: the
// weights are e^(-inf - LOWEST) = 0, and earlier sums are multiplied by e^(LOWEST - LOWEST) = 1.
constexpr float LOWEST = std::numeric_limits<float>::lowest();

constexpr int HEIGHT = 42;  // rows of a tile of queries: tokens times the heads that share a key head

template <class Number>
class Attention {
public:
    explicit Attention(const LayerCache<Number>& cache) : cache_(cache), heads_(cache.heads) {}

    // Computes one span and key head: query [tokens, width], outputs in the rows from `origin` on.
    template <class Input>
    void run(const Span& span, int head, const float* query, int width, const Input& outputs, int origin) const {
        const int dim = heads_.dim, group = heads_.group(), rows = span.count * group, padded = heads_.padded_dim();
        const int first_position = cache_.batch.contexts[span.request] + span.first;
        const int first_token = cache_.batch.starts[span.request] + span.first;
        const int length = first_position + span.count;
        const Tiles own(rows);
        const Scratch s = scratch(rows, dim, padded);
        for (int tile = 0; tile < own.tiles; ++tile)
            transpose_queries(own.rows_of(tile), s.queries + size_t(tile) * dim * ROWS, [&](int r) {
                const int row = tile * own.height + r;
                return query + size_t(first_token + row / group) * width + (head * group + row % group) * dim;
            });
        std::fill_n(s.highest, own.tiles * LANES, LOWEST);
        std::fill_n(s.totals, size_t(rows) * LANES, 0.0f);
        std::fill_n(s.outputs, size_t(rows) * padded, 0.0f);
        for (int begin = cache_.first_key(first_position), end; begin < length; begin = end) {
            end = std::min(length, (begin / KEYS + 1) * KEYS);
            const int count = end - begin;
            std::fill_n(s.best, size_t(rows) * LANES, -INFINITY);
            copy_scales(s, span.request, head, begin, count);
            scores(s, own, span.request, head, begin, count, first_position + 1 - begin);
            for (int tile = 0; tile < own.tiles; ++tile) update_highest(s, own, tile);
            for (int tile = 0; tile < own.tiles; ++tile) weigh(s, own, tile, count);
            add_values(s, own, span.request, head, begin, count);
        }
        const int token = first_token - origin;
        for (int of = 0; of < group; ++of) put(s, of, group, span.count, token, head * group + of, outputs);
    }

private:
    static constexpr bool SCALED = LayerCache<Number>::SCALE != 0;

    struct Scratch {
        float *queries, *keys, *values, *weights, *outputs;
        float *key_scales, *value_scales;  // [KEYS], of a cache with scales
        float *best;     // [rows][LANES]: the highest score of the tile in each lane
        float *highest;  // [tiles][LANES]: the highest score of each row so far
        float *shrink;   // [tiles][LANES]: the factor for earlier sums
        float *totals;   // [rows][LANES]
    };

    // Each array begins on a cache line, because a vector across two lines costs twice.
    static Scratch scratch(int rows, int dim, int padded) {
        thread_local Numbers memory;
        const int tiles = Tiles(rows).tiles;
        size_t taken = 0;
        const auto take = [&](size_t size) { return std::exchange(taken, taken + (size + 15) / 16 * 16); };
        const size_t queries = take(size_t(tiles) * ROWS * dim), keys = take(size_t(KEYS) * dim);
        const size_t values = take(size_t(KEYS) * padded), weights = take(size_t(rows) * KEYS);
        const size_t outputs = take(size_t(rows) * padded), best = take(size_t(rows) * LANES);
        const size_t key_scales = take(KEYS), value_scales = take(KEYS);
        const size_t highest = take(size_t(tiles) * LANES), shrink = take(size_t(tiles) * LANES);
        const size_t totals = take(size_t(rows) * LANES);
        if (memory.size() < taken) memory.resize(taken);
        float* m = memory.data();
        return {m + queries,      m + keys, m + values,  m + weights, m + outputs, m + key_scales,
                m + value_scales, m + best, m + highest, m + shrink,  m + totals};
    }

    const Number* key(int request, int head, int position) const {
        return cache_.keys + cache_.at(request, head, position) + position % heads_.block_size;
    }
    const Number* value(int request, int head, int position) const {
        return cache_.values + cache_.at(request, head, position) + size_t(position % heads_.block_size) * heads_.dim;
    }

    // Writes `count` scaled queries, row r at from(r), as a tile of rows.
    template <class From>
    void transpose_queries(int count, float* to, const From& from) const {
        int d = 0;
        for (; d + LANES <= heads_.dim; d += LANES) {
            Vector square[LANES] = {};
            for (int r = 0; r < count; ++r) square[r] = load(from(r) + d) * heads_.scaling;
            store_transposed(to + size_t(d) * ROWS, square, LANES);
        }
        for (; d < heads_.dim; ++d)
            for (int r = 0; r < count; ++r) to[size_t(d) * ROWS + r] = from(r)[d] * heads_.scaling;
    }

    // Writes one head's outputs of `count` tokens from `token` on.
    template <class Input>
    void put(const Scratch& s, int of, int group, int count, int token, int head, const Input& to) const {
        const int dim = heads_.dim, padded = heads_.padded_dim();
        for (int row = of; row < count * group; row += group) {
            const Vector share = broadcast(1.0f / total(load(s.totals + size_t(row) * LANES)));
            float* outputs = s.outputs + size_t(row) * padded;
            for (int d = 0; d < padded; d += LANES) store(outputs + d, load(outputs + d) * share);
        }
        for (int done = 0, some; done < count; done += some) {
            some = std::min(count - done, to.neighbours(token + done));
            const float* from = s.outputs + size_t(done * group + of) * padded;
            to.copy(token + done, some, head * dim, from, size_t(group) * padded, dim);
        }
    }

    // The scales of the tile's keys and values.
    void copy_scales(const Scratch& s, int request, int head, int begin, int count) const {
        if constexpr (SCALED)
            for (int j = 0, some; j < count; j += some) {
                const int offset = (begin + j) % heads_.block_size;
                const size_t at = cache_.at(request, head, begin + j);
                some = std::min(count - j, heads_.block_size - offset);
                ::copy_scales(scale_at(heads_, cache_.keys + at, offset), some, s.key_scales + j);
                ::copy_scales(scale_at(heads_, cache_.values + at, offset), some, s.value_scales + j);
            }
    }

    // The tile's scores. Keys are read from the cache if blocks hold whole vectors, else from a copy. The first token
    // sees the keys below `visible`.
    void scores(const Scratch& s, const Tiles& own, int request, int head, int begin, int count, int visible) const {
        const int size = heads_.block_size, dim = heads_.dim;
        if (size % LANES) {
            for (int j = 0; j < count; ++j) {
                float* column = s.keys + size_t(j / LANES) * dim * LANES + j % LANES;
                const Number* from = key(request, head, begin + j);
                for (int d = 0; d < dim; ++d) column[d * LANES] = to_float(from[d * size]);
            }
            score_all(s, own, count, visible, LANES, [&](int j) { return s.keys + size_t(j) * dim; });
        } else {
            score_all(s, own, count, visible, size, [&](int j) { return key(request, head, begin + j); });
        }
    }

    // Vector after vector: that of the keys from j on is at(j), the next dimension is `step` further.
    template <class At>
    void score_all(const Scratch& s, const Tiles& own, int count, int visible, int step, const At& at) const {
        int j = 0;
        if (own.count <= FEW)
            for (; j + 3 * LANES < count; j += 4 * LANES) score<4, FEW>(s, own, j, count, visible, step, at);
        for (; j < count; j += WIDTH) score<2, ROWS>(s, own, j, count, visible, step, at);
    }

    // The scores of V vectors of keys.
    template <int V, int MOST, class At>
    void score(const Scratch& s, const Tiles& own, int j, int count, int visible, int step, const At& at) const {
        const int dim = heads_.dim;
        Run<std::remove_cvref_t<decltype(*at(j))>, V> run;
        for (int v = 0; v < V; ++v) run.columns[v] = at(j + v * LANES < count ? j + v * LANES : j);
        run.count = dim;
        for (int tile = 0; tile < own.tiles; ++tile)
            with_rows<MOST>(own.rows_of(tile), [&](auto R) {
                Vector sums[R][V];
                sum_products<R, V, 1, true>(sums, s.queries + size_t(tile) * dim * ROWS, ROWS, &run, 1, step);
                if constexpr (SCALED)
                    for (int r = 0; r < R; ++r)
                        for (int v = 0; v < V; ++v) sums[r][v] *= load(s.key_scales + j + v * LANES);
                if (heads_.soft_cap > 0) soft_cap(sums, heads_.soft_cap);
                if (visible < j + V * LANES || j < visible + (own.count - 1) / heads_.group() - cache_.window)
                    for (int r = 0; r < R; ++r)
                        hide(sums[r], visible + (tile * own.height + r) / heads_.group() - j, cache_.window);
                for (int r = 0; r < R; ++r) {
                    const int row = tile * own.height + r;
                    float *to = s.weights + size_t(row) * KEYS + j, *best = s.best + size_t(row) * LANES;
                    Vector highest = load(best);
                    for (int v = 0; v < V; ++v) {
                        store(to + v * LANES, sums[r][v]);
                        highest = larger(sums[r][v], highest);
                    }
                    store(best, highest);
                }
            });
    }

    // Sets the scores of some vectors to -inf, except those of the `window` keys before `end`.
    template <size_t V>
    static void hide(Vector (&scores)[V], int end, int window) {
        for (Vector& v : scores) {
            v = (numbers() < float(end)) & (numbers() >= float(end - window)) ? v : broadcast(-INFINITY);
            end -= LANES;
        }
    }

    // Updates the highest scores of a tile's rows, and the factor for their earlier sums.
    void update_highest(const Scratch& s, const Tiles& own, int tile) const {
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

    // Turns the scores of a tile's rows into weights exp(score - highest), times the scales of values.
    void weigh(const Scratch& s, const Tiles& own, int tile, int count) const {
        for (int r = 0; r < own.rows_of(tile); ++r) {
            const size_t row = size_t(tile * own.height + r);
            float *weights = s.weights + row * KEYS, *totals = s.totals + row * LANES;
            const Vector now = broadcast(s.highest[tile * LANES + r]);
            Vector sum = load(totals) * s.shrink[tile * LANES + r];
            for (int j = 0; j < count; j += LANES) {
                const Vector weight = exponential(load(weights + j) - now);
                store(weights + j, SCALED ? weight * load(s.value_scales + j) : weight);
                sum += weight;
            }
            store(totals, sum);
        }
    }

    // Adds the tile's values times their weights. Values are read from the cache if a head is whole panels, else from a
    // copy.
    void add_values(const Scratch& s, const Tiles& own, int request, int head, int begin, int count) const {
        const int dim = heads_.dim, padded = heads_.padded_dim();
        if (dim != padded)
            for (int j = 0; j < count; ++j) {
                const Number* from = value(request, head, begin + j);
                for (int d = 0; d < dim; ++d) s.values[size_t(j) * padded + d] = to_float(from[d]);
            }
        int d = 0;
        if (own.count <= FEW)
            for (; d + 2 * WIDTH <= padded; d += 2 * WIDTH) add_values<4, FEW>(s, own, request, head, begin, count, d);
        for (; d < padded; d += WIDTH) add_values<2, ROWS>(s, own, request, head, begin, count, d);
    }

    // The same for V vectors of dimensions from d on.
    template <int V, int MOST>
    void add_values(const Scratch& s, const Tiles& own, int request, int head, int begin, int count, int d) const {
        if (heads_.dim != heads_.padded_dim()) {
            const Run<float, V> copy = run_of<V>(s.values + d, count);
            return add<MOST>(s, own, &copy, 1, d);
        }
        Run<Number, V> runs[KEYS];
        int found = 0;
        for (int j = 0; j < count; j += runs[found++].count) {
            const int some = std::min(count - j, heads_.block_size - (begin + j) % heads_.block_size);
            runs[found] = run_of<V>(value(request, head, begin + j) + d, some);
        }
        add<MOST>(s, own, runs, found, d);
    }

    template <int V, class Stored>
    static Run<Stored, V> run_of(const Stored* first, int count) {
        Run<Stored, V> run;
        for (int v = 0; v < V; ++v) run.columns[v] = first + v * LANES;
        run.count = count;
        return run;
    }

    template <int MOST, int V, class Stored>
    void add(const Scratch& s, const Tiles& own, const Run<Stored, V>* runs, int count, int d) const {
        const int padded = heads_.padded_dim();
        for (int tile = 0; tile < own.tiles; ++tile)
            with_rows<MOST>(own.rows_of(tile), [&](auto R) {
                const int row = tile * own.height;
                float* outputs = s.outputs + size_t(row) * padded + d;
                const float *weights = s.weights + size_t(row) * KEYS, *shrink = s.shrink + tile * LANES;
                Vector sums[R][V];
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < V; ++v) sums[r][v] = load(outputs + size_t(r) * padded + v * LANES) * shrink[r];
                sum_products<R, V, KEYS, false>(sums, weights, 1, runs, count, padded);
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < V; ++v) store(outputs + size_t(r) * padded + v * LANES, sums[r][v]);
            });
    }

    const LayerCache<Number> cache_;
    const Heads& heads_;
};
