// Attention over the block table, without gathering or padding.
//
// A query goes through its keys in tiles, and each sum has one order. So its output is bitwise the same for a whole prompt,
// for chunks, when it is computed again, and in any batch. (Tiles: Dao, FlashAttention-2, 2023.) Keys before a query's
// window have the weight 0, which changes no sum, so it does not matter where in a tile reading begins.
#pragma once

#include "attention_rows.h"
#include "plain_cache.h"

// Prefetches parts of what is read later, each step a vector of numbers of SIZE bytes from each.
template <int PARTS, int SIZE>
struct PrefetchParts {
    const char* parts[PARTS];

    template <class Any>
    void operator()(const Any&) {
#pragma GCC unroll 8
        for (const char*& part : parts) {
            prefetch<0, 2>(part);
            part += LANES * SIZE;
        }
    }
};

constexpr int VALUES = 128;  // of a tile of keys, at once: as floats, half of what the first-level cache holds

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
        const int length = heads_.both_ways ? cache_.batch.length(span.request) : first_position + span.count;
        const Scratch s(heads_, cache_.window, first_position, length, span.count * group);
        const AttentionRows& rows = s.rows;
        const Tiles& own = rows.own;
        for (int tile = 0; tile < own.tiles; ++tile)
            transpose_queries(own.rows_of(tile), s.queries + size_t(tile) * dim * ROWS, [&](int r) {
                const int row = tile * own.height + r;
                return query + size_t(first_token + row / group) * width + (head * group + row % group) * dim;
            });
        rows.begin(cache_.sinks_of(head));
        for (int begin = cache_.first_key(first_position), end; begin < length; begin = end) {
            end = std::min(length, (begin / KEYS + 1) * KEYS);
            const KeyRange range{span.request, head, begin, end - begin, length};
            rows.begin_keys();
            scores(s, range);
            for (int tile = 0; tile < own.tiles; ++tile) rows.update_highest(tile);
            for (int tile = 0; tile < own.tiles; ++tile) weigh(rows, tile, range.count);
            add_values(s, range);
        }
        rows.put(first_token - origin, head, outputs);
    }

private:
    // `count` keys from `begin` on, of the `length` that a request's head looks at.
    struct KeyRange {
        int request, head, begin, count, length;
    };

    struct Scratch {
        AttentionRows rows;
        float *queries, *keys, *values;
        float* wide;  // two vectors of columns

        Scratch(const Heads& heads, int window, int first_position, int length, int count)
            : rows(heads, window, first_position, length, count) {
            lay_out([&](const auto& take) {
                rows.lay(take);
                queries = take(size_t(rows.own.tiles) * ROWS * heads.dim), keys = take(size_t(KEYS) * heads.dim);
                values = take(size_t(KEYS) * heads.padded_dim()), wide = take(size_t(WIDTH) * std::max(heads.dim, VALUES));
            });
        }
    };

    const Number* key(const KeyRange& range, int j) const {
        const int position = range.begin + j;
        return cache_.keys + cache_.at(range.request, range.head, position) + position % heads_.block_size;
    }
    const Number* value(const KeyRange& range, int j) const {
        const int position = range.begin + j;
        const size_t place = size_t(position % heads_.block_size) * heads_.dim;
        return cache_.values + cache_.at(range.request, range.head, position) + place;
    }

    // Writes `count` scaled queries, row r at from(r), as a tile of rows.
    template <class From>
    void transpose_queries(int count, float* to, const From& from) const {
        int d = 0;
        for (; d + LANES <= heads_.dim; d += LANES) {
            Vector square[LANES] = {};
            for (int r = 0; r < count; ++r) square[r] = load(from(r) + d) * heads_.scaling;
            store_transposed(to + size_t(d) * ROWS, square, ROWS, LANES);
        }
        for (; d < heads_.dim; ++d)
            for (int r = 0; r < count; ++r) to[size_t(d) * ROWS + r] = from(r)[d] * heads_.scaling;
    }

    // The tile's scores. Keys are read from the cache if blocks hold whole vectors, else from a copy.
    void scores(const Scratch& s, const KeyRange& range) const {
        const int size = heads_.block_size, dim = heads_.dim;
        if (size % LANES) {
            for (int j = 0; j < range.count; ++j) {
                float* column = s.keys + size_t(j / LANES) * dim * LANES + j % LANES;
                const Number* from = key(range, j);
                for (int d = 0; d < dim; ++d) column[d * LANES] = to_float(from[d * size]);
            }
            score_all(s, range, LANES, [&](int j) { return s.keys + size_t(j) * dim; });
        } else {
            score_all(s, range, size, [&](int j) { return key(range, j); });
        }
    }

    // Vector after vector: that of the keys from j on is at(j), the next dimension is `step` further.
    template <class At>
    void score_all(const Scratch& s, const KeyRange& range, int step, const At& at) const {
        int j = 0;
        if (s.rows.own.count <= FEW)
            for (; j + 3 * LANES < range.count; j += 4 * LANES) score<4, FEW>(s, range, j, step, at);
        for (; j < range.count; j += WIDTH) score<2, ROWS>(s, range, j, step, at);
    }

    // The scores of V vectors of keys. Meanwhile the same keys' values are prefetched, and the keys that follow KEYS
    // later.
    template <int V, int MOST, class At>
    void score(const Scratch& s, const KeyRange& range, int j, int step, const At& at) const {
        using Stored = std::remove_cvref_t<decltype(*at(j))>;
        const int dim = heads_.dim;
        Run<Stored, V> run;
        PrefetchParts<2 * V, sizeof(Number)> fetch;
        for (int v = 0; v < V; ++v) {
            const int from = j + v * LANES < range.count ? j + v * LANES : j;
            const Number* later = value(range, from);
            run.columns[v] = at(from);
            fetch.parts[v] = reinterpret_cast<const char*>(later);
            if (range.begin + from + KEYS < range.length) later = share_of_keys(range, from + KEYS);
            fetch.parts[V + v] = reinterpret_cast<const char*>(later);
        }
        run.count = dim;
        each_tile(s, &run, 1, step, [&](int tile, const auto* runs, int count, size_t step, const auto& keep) {
            with_rows<MOST>(s.rows.own.rows_of(tile), [&](auto R) {
                Vector sums[R][V];
                const float* queries = s.queries + size_t(tile) * dim * ROWS;
                sum_products<R, V, 1, true>(sums, queries, ROWS, runs, count, step, fetch, keep);
                s.rows.keep(tile, range.begin, j, sums);
            });
        });
    }

    // Calls multiply(tile, runs, count, step, keep) for each tile of rows and these runs. The first of several tiles
    // stores what it reads as floats for the others.
    template <int V, class Stored, class Multiply>
    static void each_tile(const Scratch& s, const Run<Stored, V>* runs, int count, size_t step, const Multiply& multiply) {
        int tile = 0;
        if constexpr (sizeof(Stored) < sizeof(float) && V == 2)
            if (s.rows.own.tiles > 1) {
                Run<float, V> wide{{s.wide, s.wide + LANES}, 0};
                for (int i = 0; i < count; ++i) wide.count += runs[i].count;
                for (multiply(tile++, runs, count, step, Widen{s.wide}); tile < s.rows.own.tiles; ++tile)
                    multiply(tile, &wide, 1, WIDTH, Nothing());
            }
        for (; tile < s.rows.own.tiles; ++tile) multiply(tile, runs, count, step, Nothing());
    }

    // As many of a block's keys as a vector has positions, in the order of the memory.
    const Number* share_of_keys(const KeyRange& range, int j) const {
        const int position = range.begin + j;
        const size_t share = size_t(position % heads_.block_size) * heads_.dim;
        return cache_.keys + cache_.at(range.request, range.head, position) + share;
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
    void add_values(const Scratch& s, const KeyRange& range) const {
        const int dim = heads_.dim, padded = heads_.padded_dim();
        if (dim != padded)
            for (int j = 0; j < range.count; ++j) {
                const Number* from = value(range, j);
                for (int d = 0; d < dim; ++d) s.values[size_t(j) * padded + d] = to_float(from[d]);
            }
        for (int first = 0; first < range.count; first += VALUES) {
            const int end = std::min(range.count, first + VALUES);
            int d = 0;
            if (s.rows.own.count <= FEW)
                for (; d + 2 * WIDTH <= padded; d += 2 * WIDTH) add_values<4, FEW>(s, range, first, end, d);
            for (; d < padded; d += WIDTH) add_values<2, ROWS>(s, range, first, end, d);
        }
    }

    // The same for the values [first, end) and V vectors of dimensions from d on.
    template <int V, int MOST>
    void add_values(const Scratch& s, const KeyRange& range, int first, int end, int d) const {
        if (heads_.dim != heads_.padded_dim()) {
            const Run<float, V> copy = run_of<V>(s.values + size_t(first) * heads_.padded_dim() + d, end - first);
            return add<MOST>(s, &copy, 1, first, d);
        }
        Run<Number, V> runs[VALUES];
        int found = 0;
        for (int j = first; j < end; j += runs[found++].count) {
            const int some = std::min(end - j, heads_.block_size - (range.begin + j) % heads_.block_size);
            runs[found] = run_of<V>(value(range, j) + d, some);
        }
        add<MOST>(s, runs, found, first, d);
    }

    template <int V, class Stored>
    static Run<Stored, V> run_of(const Stored* first, int count) {
        Run<Stored, V> run;
        for (int v = 0; v < V; ++v) run.columns[v] = first + v * LANES;
        run.count = count;
        return run;
    }

    // The first values of a range are added to what earlier ranges gave, times how much that shrinks.
    template <int MOST, int V, class Stored>
    void add(const Scratch& s, const Run<Stored, V>* all, int found, int first, int d) const {
        const int padded = heads_.padded_dim();
        each_tile(s, all, found, padded, [&](int tile, const auto* runs, int count, size_t step, const auto& keep) {
            with_rows<MOST>(s.rows.own.rows_of(tile), [&](auto R) {
                const int row = tile * s.rows.own.height;
                float* outputs = s.rows.outputs + size_t(row) * padded + d;
                const float *weights = s.rows.scores + size_t(row) * KEYS + first, *shrink = s.rows.shrink + tile * LANES;
                Vector sums[R][V];
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < V; ++v) {
                        const Vector before = load(outputs + size_t(r) * padded + v * LANES);
                        sums[r][v] = first ? before : before * shrink[r];
                    }
                sum_products<R, V, KEYS, false>(sums, weights, 1, runs, count, step, Nothing(), keep);
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < V; ++v) store(outputs + size_t(r) * padded + v * LANES, sums[r][v]);
            });
        });
    }

    const LayerCache<Number> cache_;
    const Heads& heads_;
};
