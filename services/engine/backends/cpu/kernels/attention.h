// Attention over the block table, without gathering or padding.
//
// A query goes through its keys in tiles, and each sum has one order. So its output is bitwise the same for a whole prompt,
// for chunks, when it is computed again, and in any batch. (Tiles: Dao, FlashAttention-2, 2023.) Keys before a query's
// window have the weight 0, which changes no sum, so it does not matter where in a tile reading begins.
#pragma once

#include "attention_rows.h"
#include "plain_cache.h"

template <class Number>
class Attention {
public:
    explicit Attention(const LayerCache<Number>& cache) : cache_(cache), heads_(cache.heads) {}

    // Computes one span and key head: query [tokens, width], outputs in the rows from `origin` on.
    template <class Input>
    void run(const Span& span, int head, const float* query, int width, const Input& outputs, int origin) const {
        const int dim = heads_.dim, group = heads_.group();
        const int first_position = cache_.batch.contexts[span.request] + span.first;
        const int first_token = cache_.batch.starts[span.request] + span.first;
        const int length = first_position + span.count;
        const Scratch s(heads_, cache_.window, first_position, span.count * group);
        const AttentionRows& rows = s.rows;
        const Tiles& own = rows.own;
        for (int tile = 0; tile < own.tiles; ++tile)
            transpose_queries(own.rows_of(tile), s.queries + size_t(tile) * dim * ROWS, [&](int r) {
                const int row = tile * own.height + r;
                return query + size_t(first_token + row / group) * width + (head * group + row % group) * dim;
            });
        rows.begin();
        for (int begin = cache_.first_key(first_position), end; begin < length; begin = end) {
            end = std::min(length, (begin / KEYS + 1) * KEYS);
            const int count = end - begin;
            rows.begin_keys();
            scores(s, span.request, head, begin, count);
            for (int tile = 0; tile < own.tiles; ++tile) rows.update_highest(tile);
            for (int tile = 0; tile < own.tiles; ++tile) weigh(rows, tile, count);
            add_values(s, span.request, head, begin, count);
        }
        rows.put(first_token - origin, head, outputs);
    }

private:
    struct Scratch {
        AttentionRows rows;
        float *queries, *keys, *values;

        Scratch(const Heads& heads, int window, int first_position, int count)
            : rows(heads, window, first_position, count) {
            lay_out([&](const auto& take) {
                rows.lay(take);
                queries = take(size_t(rows.own.tiles) * ROWS * heads.dim), keys = take(size_t(KEYS) * heads.dim);
                values = take(size_t(KEYS) * heads.padded_dim());
            });
        }
    };

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

    // The tile's scores. Keys are read from the cache if blocks hold whole vectors, else from a copy.
    void scores(const Scratch& s, int request, int head, int begin, int count) const {
        const int size = heads_.block_size, dim = heads_.dim;
        if (size % LANES) {
            for (int j = 0; j < count; ++j) {
                float* column = s.keys + size_t(j / LANES) * dim * LANES + j % LANES;
                const Number* from = key(request, head, begin + j);
                for (int d = 0; d < dim; ++d) column[d * LANES] = to_float(from[d * size]);
            }
            score_all(s, begin, count, LANES, [&](int j) { return s.keys + size_t(j) * dim; });
        } else {
            score_all(s, begin, count, size, [&](int j) { return key(request, head, begin + j); });
        }
    }

    // Vector after vector: that of the keys from j on is at(j), the next dimension is `step` further.
    template <class At>
    void score_all(const Scratch& s, int begin, int count, int step, const At& at) const {
        int j = 0;
        if (s.rows.own.count <= FEW)
            for (; j + 3 * LANES < count; j += 4 * LANES) score<4, FEW>(s, begin, j, count, step, at);
        for (; j < count; j += WIDTH) score<2, ROWS>(s, begin, j, count, step, at);
    }

    // The scores of V vectors of keys.
    template <int V, int MOST, class At>
    void score(const Scratch& s, int begin, int j, int count, int step, const At& at) const {
        const int dim = heads_.dim;
        Run<std::remove_cvref_t<decltype(*at(j))>, V> run;
        for (int v = 0; v < V; ++v) run.columns[v] = at(j + v * LANES < count ? j + v * LANES : j);
        run.count = dim;
        for (int tile = 0; tile < s.rows.own.tiles; ++tile)
            with_rows<MOST>(s.rows.own.rows_of(tile), [&](auto R) {
                Vector sums[R][V];
                sum_products<R, V, 1, true>(sums, s.queries + size_t(tile) * dim * ROWS, ROWS, &run, 1, step);
                s.rows.keep(tile, begin, j, sums);
            });
    }

    // Turns the scores of a tile's rows into weights exp(score - highest).
    void weigh(const AttentionRows& rows, int tile, int count) const {
        for (int r = 0; r < rows.own.rows_of(tile); ++r) {
            const size_t row = size_t(tile * rows.own.height + r);
            float *weights = rows.scores + row * KEYS, *totals = rows.totals + row * LANES;
            const Vector now = broadcast(rows.highest[tile * LANES + r]);
            Vector sum = load(totals) * rows.shrink[tile * LANES + r];
            for (int j = 0; j < count; j += LANES) {
                const Vector weight = exponential(load(weights + j) - now);
                store(weights + j, weight);
                sum += weight;
            }
            store(totals, sum);
        }
    }

    // Adds the tile's values times their weights. Values are read from the cache if a head is whole panels, else from a
    // copy.
    void add_values(const Scratch& s, int request, int head, int begin, int count) const {
        const int dim = heads_.dim, padded = heads_.padded_dim();
        if (dim != padded)
            for (int j = 0; j < count; ++j) {
                const Number* from = value(request, head, begin + j);
                for (int d = 0; d < dim; ++d) s.values[size_t(j) * padded + d] = to_float(from[d]);
            }
        int d = 0;
        if (s.rows.own.count <= FEW)
            for (; d + 2 * WIDTH <= padded; d += 2 * WIDTH) add_values<4, FEW>(s, request, head, begin, count, d);
        for (; d < padded; d += WIDTH) add_values<2, ROWS>(s, request, head, begin, count, d);
    }

    // The same for V vectors of dimensions from d on.
    template <int V, int MOST>
    void add_values(const Scratch& s, int request, int head, int begin, int count, int d) const {
        if (heads_.dim != heads_.padded_dim()) {
            const Run<float, V> copy = run_of<V>(s.values + d, count);
            return add<MOST>(s.rows, &copy, 1, d);
        }
        Run<Number, V> runs[KEYS];
        int found = 0;
        for (int j = 0; j < count; j += runs[found++].count) {
            const int some = std::min(count - j, heads_.block_size - (begin + j) % heads_.block_size);
            runs[found] = run_of<V>(value(request, head, begin + j) + d, some);
        }
        add<MOST>(s.rows, runs, found, d);
    }

    template <int V, class Stored>
    static Run<Stored, V> run_of(const Stored* first, int count) {
        Run<Stored, V> run;
        for (int v = 0; v < V; ++v) run.columns[v] = first + v * LANES;
        run.count = count;
        return run;
    }

    template <int MOST, int V, class Stored>
    void add(const AttentionRows& rows, const Run<Stored, V>* runs, int count, int d) const {
        const int padded = heads_.padded_dim();
        for (int tile = 0; tile < rows.own.tiles; ++tile)
            with_rows<MOST>(rows.own.rows_of(tile), [&](auto R) {
                const int row = tile * rows.own.height;
                float* outputs = rows.outputs + size_t(row) * padded + d;
                const float *weights = rows.scores + size_t(row) * KEYS, *shrink = rows.shrink + tile * LANES;
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
