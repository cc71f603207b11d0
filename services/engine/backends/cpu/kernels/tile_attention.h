// Attention over the block table on AMX. Keys and values are bfloat16, and so are queries and weights in products; sums
// and the softmax are float32.
//
// As in attention.h, a query goes through its keys in tiles that begin at multiples of KEYS, and each sum has one
// order, so bits depend on the request alone.
#pragma once

#include "inputs.h"
#include "tile_cache.h"

#if defined(__AMX_BF16__)

class TileAttention {
public:
    explicit TileAttention(const LayerCache<bfloat16>& cache) : cache_(cache), tiles_(cache), heads_(cache.heads) {}

    // See Attention::run.
    template <class Input>
    void run(const Span& span, int head, const float* query, int width, const Input& outputs, int origin) const {
        const int dim = heads_.dim, group = heads_.group(), rows = span.count * group;
        const int first_position = cache_.batch.contexts[span.request] + span.first;
        const int first_token = cache_.batch.starts[span.request] + span.first;
        const int length = first_position + span.count;
        const Scratch s = scratch(rows, dim);
        for (int r = 0; r < rows; ++r) {
            const float* from = query + size_t(first_token + r / group) * width + (head * group + r % group) * dim;
            for (int d = 0; d < dim; d += LANES) store_some(s.queries + size_t(r) * dim + d, load(from + d), LANES);
        }
        std::fill_n(s.highest, rows, LOWEST);
        std::fill_n(s.totals, size_t(rows) * LANES, 0.0f);
        std::fill_n(s.outputs, size_t(rows) * dim, 0.0f);
        const float* sinks = cache_.sinks_of(head);
        for (int r = 0; sinks && r < rows; ++r) {  // as after a key of that score whose value is 0
            s.highest[r] = sinks[r % group] / heads_.scaling;
            s.totals[size_t(r) * LANES] = 1.0f;
        }
        const ShapedTiles tiles(Shapes(8, std::min(rows, SIDE)));  // two of them for products over 8 pairs
        for (int begin = cache_.first_key(first_position), end; begin < length; begin = end) {
            end = std::min(length, (begin / KEYS + 1) * KEYS);
            const int count = end - begin, keys = (count + SIDE - 1) / SIDE * SIDE;
            const KeyRange range{span.request, head, begin, keys, length};
            tiles.renew();
            for (int row = 0; row < rows; row += SIDE) score(s, row, range);
            for (int r = 0; r < rows; ++r) weigh(s, r, keys, first_position + r / group + 1 - begin);
            tiles.renew();
            for (int row = 0; row < rows; row += SIDE) add_values(s, row, range);
        }
        for (int r = 0; r < rows; ++r) {
            const float share = 1.0f / total(load(s.totals + size_t(r) * LANES));
            float* from = s.outputs + size_t(r) * dim;
            for (int d = 0; d < dim; d += LANES) store(from + d, load(from + d) * share);
            outputs.copy(first_token - origin + r / group, 1, (head * group + r % group) * dim, from, dim, dim);
        }
    }

private:
    struct Scratch {
        bfloat16* queries;  // [rows][dim]
        float* scores;      // [rows][KEYS]
        bfloat16* weights;  // [rows][KEYS]
        float *outputs;     // [rows][dim]
        float* totals;      // [rows][LANES]
        float* highest;     // [rows]
    };

    // Memory for whole tiles of rows.
    static Scratch scratch(int rows, int dim) {
        thread_local Numbers memory;
        const size_t whole = (rows + SIDE - 1) / SIDE * SIDE;
        const size_t size = whole * (dim / 2 + KEYS + KEYS / 2 + dim + LANES + 1);
        if (memory.size() < size) memory.resize(size);
        float *scores = memory.data(), *outputs = scores + whole * KEYS, *totals = outputs + whole * dim;
        float *queries = totals + whole * LANES, *weights = queries + whole * dim / 2;
        float* highest = weights + whole * KEYS / 2;
        return {reinterpret_cast<bfloat16*>(queries), scores, reinterpret_cast<bfloat16*>(weights), outputs, totals, highest};
    }

    // The scores of a tile's rows, not scaled. Those past the last key are undefined.
    void score(const Scratch& s, int row, const KeyRange& range) const {
        const int dim = heads_.dim;
        const size_t query = dim * sizeof(bfloat16), line = 2 * SIDE * sizeof(bfloat16);
        for (int j = 0; j < range.keys; j += 4 * SIDE) {
            const bfloat16* from[4];
            Prefetch soon[4];
            for (int i = 0; i < 4; ++i) {
                from[i] = tiles_.key_columns(range, std::min(j + i * SIDE, range.keys - SIDE), i);
                if (!row) soon[i] = tiles_.after_key(range, j + i * SIDE + DISTANCE);
            }
            settle();
            for_tiles<4>([](auto T) { clear_tile<T>(); });
            for (int d = 0; d < dim; d += DEPTHS) {
                load_tile<4>(s.queries + size_t(row) * dim + d, query);
                for_tiles<4>([&](auto T) {
                    load_tile<6>(from[T] + d * SIDE, line);
                    multiply_tiles<T, 4, 6>();
                    soon[T].ask(d / 8);
                    soon[T].ask(d / 8 + 2);
                });
            }
            float* to = s.scores + size_t(row) * KEYS + j;
            for_tiles<4>([&](auto T) { store_tile<T>(to + T * SIDE, KEYS * sizeof(float)); });
        }
    }

    // Turns a row's scores into weights e^(scaling * (score - highest)); only those of the window before `visible` count.
    void weigh(const Scratch& s, int r, int keys, int visible) const {
        float* scores = s.scores + size_t(r) * KEYS;
        bfloat16* weights = s.weights + size_t(r) * KEYS;
        const int hidden = visible - cache_.window;
        if (heads_.soft_cap > 0) cap(scores, keys);
        Vector best = broadcast(s.highest[r]);
        for (int j = 0; j < keys; j += LANES) {
            const Ints in_sight = (numbers() < float(visible - j)) & (numbers() >= float(hidden - j));
            const Vector seen = in_sight ? load(scores + j) : broadcast(-INFINITY);
            if (visible < j + LANES || j < hidden) store(scores + j, seen);
            best = larger(seen, best);
        }
        const float now = highest(best), factor = heads_.scaling * 1.44269504f;
        const Vector shrink = fast_power(broadcast((s.highest[r] - now) * factor));
        s.highest[r] = now;
        Vector sum = load(s.totals + size_t(r) * LANES) * shrink;
        for (int j = 0; j < keys; j += LANES) {
            const Vector weight = fast_power((load(scores + j) - now) * factor);
            store_some(weights + j, weight, LANES);
            sum += weight;
        }
        store(s.totals + size_t(r) * LANES, sum);
        float* outputs = s.outputs + size_t(r) * heads_.dim;
        for (int d = 0; d < heads_.dim; d += LANES) store(outputs + d, load(outputs + d) * shrink);
    }

    // Caps scores that are not scaled.
    void cap(float* scores, int keys) const {
        const float scaling = heads_.scaling, inverse = 1.0f / scaling;
        for (int j = 0; j < keys; j += LANES)
            store(scores + j, soft_capped(load(scores + j) * scaling, heads_.soft_cap) * inverse);
    }

    // Adds values times the weights of a tile's rows.
    void add_values(const Scratch& s, int row, const KeyRange& range) const {
        int d = 0;
        for (; d + 4 * SIDE <= heads_.dim; d += 4 * SIDE) add_columns<4>(s, row, d, range);
        if (d < heads_.dim) add_columns<2>(s, row, d, range);
    }

    // The same for TILES * SIDE columns from d on.
    template <int TILES>
    void add_columns(const Scratch& s, int row, int d, const KeyRange& range) const {
        const int dim = heads_.dim;
        const size_t line = dim * 2 * sizeof(bfloat16), out = dim * sizeof(float);
        float* outputs = s.outputs + size_t(row) * dim + d;
        settle();
        for_tiles<TILES>([&](auto T) { load_tile<T>(outputs + T * SIDE, out); });
        for (int j = 0; j < range.keys; j += SIDE) {
            const bfloat16* from = tiles_.value_columns(range, j) + d * 2;
            const Prefetch soon = row ? Prefetch{} : tiles_.after_value(range, j + DISTANCE, d);
            load_tile<5>(s.weights + size_t(row) * KEYS + j, KEYS * sizeof(bfloat16));
            for_tiles<TILES>([&](auto T) {
                load_tile<7>(from + T * 2 * SIDE, line);
                multiply_tiles<T, 5, 7>();
                soon.ask(2 * T);
            });
        }
        for_tiles<TILES>([&](auto T) { store_tile<T>(outputs + T * SIDE, out); });
    }

    const LayerCache<bfloat16> cache_;
    const TileCache tiles_;
    const Heads& heads_;
};

#endif

// Calls work(attention) with the class that reads this cache.
template <class Number, class Work>
inline void with_attention(const LayerCache<Number>& cache, const Work& work) {
#if defined(__AMX_BF16__)
    if constexpr (std::is_same_v<Number, bfloat16>)
        if (by_tiles(cache.heads, BFLOAT16_CACHE)) return work(TileAttention(cache));
#endif
    if constexpr (std::is_same_v<Number, int8_t>)
        work(CodeAttention(cache));
    else
        work(Attention<Number>(cache));
}

// The most rows of a span: tokens times the heads that share a key head. The more rows, the less often keys and values
// are widened; their scores must fit in a second-level cache.
inline int span_height(const Heads& heads, CacheKind kind) {
    return by_tiles(heads, kind) ? 48 : kind == INT8_CACHE ? 42 : 84;
}
