// Attention over the block table on AMX: keys and values are bfloat16, and so are queries and weights when they are
// multiplied; sums and the softmax are float32.
//
// As in attention.h a query goes through its keys in tiles that begin at multiples of KEYS, each sum in one order: bits
// depend on the request alone.
#pragma once

#include "attention.h"
#include "inputs.h"

#if defined(__AMX_BF16__)

constexpr int SIDE = 16;  // rows of a tile, and the keys of one product
constexpr int LINE = 32;  // numbers of one of the cache
constexpr int SOON = 64;  // keys by which keys and values are asked for before they are multiplied

inline bool by_tiles(const Heads& heads, bool bfloat16_cache) {
    return HAS_TILES && bfloat16_cache && heads.dim % DEPTHS == 0;
}

// Blocks that tiles can be read from. What is kept of one for a head: keys [block_size / SIDE][dim / 2][SIDE][2], values
// [block_size / 2][dim][2].
inline bool in_pairs(const Heads& heads) { return heads.block_size % SIDE == 0; }

inline size_t key_place(const Heads& heads, int offset, int d) {
    return size_t(offset / SIDE) * SIDE * heads.dim + (size_t(d / 2) * SIDE + offset % SIDE) * 2;
}
inline size_t value_place(const Heads& heads, int offset, int d) {
    return (size_t(offset / 2) * heads.dim + d) * 2 + offset % 2;
}

inline void keep_in_pairs(const Kept<bfloat16>& kept, size_t at, int offset, const float* key, const float* value) {
    bfloat16 *keys = kept.keys + at, *values = kept.values + at;
    for (int d = 0; d < kept.heads.dim; d += LANES) {
        bfloat16 short_key[LANES], short_value[LANES];
        store_some(short_key, load(key + d), LANES);
        store_some(short_value, load(value + d), LANES);
        for (int i = 0; i < LANES; i += 2) std::memcpy(keys + key_place(kept.heads, offset, d + i), short_key + i, 4);
        for (int i = 0; i < LANES; ++i) values[value_place(kept.heads, offset, d + i)] = short_value[i];
    }
}

// 2^x for x <= 0 to 2^-13 of it, more than a bfloat16 keeps: 2^whole times a polynomial of the rest. Of minus infinity the
// rest is NaN, which scaled by so little is 0.
inline Vector short_power(Vector of) {
    const __m512 x = __m512(of), whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vector rest = Vector(_mm512_sub_ps(x, whole));
    Vector p = rest * 0.05459282f + 0.24221784f;  // least squares at Chebyshev's points
    p = p * rest + 0.6933686f;
    p = p * rest + 1.0f;
    return Vector(_mm512_scalef_ps(__m512(p), whole));
}

class TileAttention {
public:
    explicit TileAttention(const Kept<bfloat16>& kept) : kept_(kept), heads_(kept.heads) {}

    // See Attention::run.
    template <class Input>
    void run(const Span& span, int head, const float* query, int width, const Input& outputs, int origin) const {
        const int dim = heads_.dim, group = heads_.group(), rows = span.count * group;
        const int first_position = kept_.batch.contexts[span.request] + span.first;
        const int first_token = kept_.batch.starts[span.request] + span.first;
        const int length = first_position + span.count;
        const Scratch s = scratch(rows, dim);
        for (int r = 0; r < rows; ++r) {
            const float* from = query + size_t(first_token + r / group) * width + (head * group + r % group) * dim;
            for (int d = 0; d < dim; d += LANES) store_some(s.queries + size_t(r) * dim + d, load(from + d), LANES);
        }
        std::fill_n(s.highest, rows, -INFINITY);
        std::fill_n(s.totals, size_t(rows) * LANES, 0.0f);
        std::fill_n(s.outputs, size_t(rows) * dim, 0.0f);
        const HalfTiles tiles(std::min(rows, SIDE));
        for (int begin = 0; begin < length; begin += KEYS) {
            const int count = std::min(KEYS, length - begin), keys = (count + SIDE - 1) / SIDE * SIDE;
            const Part part{span.request, head, begin, keys, length};
            for (int row = 0; row < rows; row += SIDE) score(s, row, part);
            for (int r = 0; r < rows; ++r) weigh(s, r, keys, first_position + r / group + 1 - begin);
            for (int row = 0; row < rows; row += SIDE) collect(s, row, part);
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

    // `keys` from `begin` on, in whole products, of the `length` that a request's head looks at.
    struct Part {
        int request, head, begin, keys, length;
    };

    // What is read soon. Its lines are asked for a few at a time, between products: the processor waits when there are many.
    struct Soon {
        const bfloat16* from = nullptr;
        size_t step = 0;  // numbers from four lines to the next four

        // From the at-th four lines on two times four.
        void ask(int at) const {
            if (!from) return;
            const bfloat16 *first = from + at * step, *second = first + step;
            for (int i = 0; i < 4; ++i) fetch(first + i * LINE);
            for (int i = 0; i < 4; ++i) fetch(second + i * LINE);
        }

        // Here, and not where the compiler would like it.
        static void fetch(const bfloat16* line) { asm volatile("prefetcht0 %0" ::"m"(*line)); }
    };

    // Room for whole tiles of rows.
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

    // Scores of a tile's rows, not scaled. Those behind the last key are not to be read.
    void score(const Scratch& s, int row, const Part& part) const {
        const int dim = heads_.dim;
        const size_t query = dim * sizeof(bfloat16), line = 2 * SIDE * sizeof(bfloat16);
        for (int j = 0; j < part.keys; j += 4 * SIDE) {
            const bfloat16* from[4];
            Soon soon[4];
            for (int i = 0; i < 4; ++i) {
                from[i] = key_columns(part, std::min(j + i * SIDE, part.keys - SIDE), i);
                if (!row) soon[i] = after_key(part, j + i * SIDE + SOON);
            }
            settle();
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int d = 0; d < dim; d += DEPTHS) {
                const int at = d * SIDE, lines = d / 8;
                _tile_loadd(4, s.queries + size_t(row) * dim + d, query);
                _tile_loadd(6, from[0] + at, line);
                _tile_dpbf16ps(0, 4, 6);
                soon[0].ask(lines);
                soon[0].ask(lines + 2);
                _tile_loadd(6, from[1] + at, line);
                _tile_dpbf16ps(1, 4, 6);
                soon[1].ask(lines);
                soon[1].ask(lines + 2);
                _tile_loadd(6, from[2] + at, line);
                _tile_dpbf16ps(2, 4, 6);
                soon[2].ask(lines);
                soon[2].ask(lines + 2);
                _tile_loadd(6, from[3] + at, line);
                _tile_dpbf16ps(3, 4, 6);
                soon[3].ask(lines);
                soon[3].ask(lines + 2);
            }
            float* to = s.scores + size_t(row) * KEYS + j;
            _tile_stored(0, to, KEYS * sizeof(float));
            _tile_stored(1, to + SIDE, KEYS * sizeof(float));
            _tile_stored(2, to + 2 * SIDE, KEYS * sizeof(float));
            _tile_stored(3, to + 3 * SIDE, KEYS * sizeof(float));
        }
    }

    // A row's scores to weights e^(scaling * (score - highest)), of which the first `visible` are seen.
    void weigh(const Scratch& s, int r, int keys, int visible) const {
        float* scores = s.scores + size_t(r) * KEYS;
        bfloat16* weights = s.weights + size_t(r) * KEYS;
        Vector best = broadcast(s.highest[r]);
        for (int j = 0; j < keys; j += LANES) {
            const Vector all = load(scores + j), seen = numbers() < float(visible - j) ? all : broadcast(-INFINITY);
            if (visible < j + LANES) store(scores + j, seen);
            best = larger(seen, best);
        }
        const float now = highest(best), factor = heads_.scaling * 1.44269504f;
        const Vector shrink = short_power(broadcast((s.highest[r] - now) * factor));
        s.highest[r] = now;
        Vector sum = load(s.totals + size_t(r) * LANES) * shrink;
        for (int j = 0; j < keys; j += LANES) {
            const Vector weight = short_power((load(scores + j) - now) * factor);
            store_some(weights + j, weight, LANES);
            sum += weight;
        }
        store(s.totals + size_t(r) * LANES, sum);
        float* outputs = s.outputs + size_t(r) * heads_.dim;
        for (int d = 0; d < heads_.dim; d += LANES) store(outputs + d, load(outputs + d) * shrink);
    }

    // Adds values by the weights of a tile's rows.
    void collect(const Scratch& s, int row, const Part& part) const {
        int d = 0;
        for (; d + 4 * SIDE <= heads_.dim; d += 4 * SIDE) collect_columns<4>(s, row, d, part);
        if (d < heads_.dim) collect_columns<2>(s, row, d, part);
    }

    // TILES times SIDE columns, from d on.
    template <int TILES>
    void collect_columns(const Scratch& s, int row, int d, const Part& part) const {
        const int dim = heads_.dim;
        const size_t line = dim * 2 * sizeof(bfloat16), out = dim * sizeof(float);
        float* outputs = s.outputs + size_t(row) * dim + d;
        settle();
        _tile_loadd(0, outputs, out);
        _tile_loadd(1, outputs + SIDE, out);
        if constexpr (TILES == 4) {
            _tile_loadd(2, outputs + 2 * SIDE, out);
            _tile_loadd(3, outputs + 3 * SIDE, out);
        }
        for (int j = 0; j < part.keys; j += SIDE) {
            const bfloat16* from = value_columns(part, j) + d * 2;
            const Soon soon = row ? Soon{} : after_value(part, j + SOON, d);
            _tile_loadd(5, s.weights + size_t(row) * KEYS + j, KEYS * sizeof(bfloat16));
            _tile_loadd(7, from, line);
            _tile_dpbf16ps(0, 5, 7);
            soon.ask(0);
            _tile_loadd(7, from + 2 * SIDE, line);
            _tile_dpbf16ps(1, 5, 7);
            soon.ask(2);
            if constexpr (TILES == 4) {
                _tile_loadd(7, from + 4 * SIDE, line);
                _tile_dpbf16ps(2, 5, 7);
                soon.ask(4);
                _tile_loadd(7, from + 6 * SIDE, line);
                _tile_dpbf16ps(3, 5, 7);
                soon.ask(6);
            }
        }
        _tile_stored(0, outputs, out);
        _tile_stored(1, outputs + SIDE, out);
        if constexpr (TILES == 4) {
            _tile_stored(2, outputs + 2 * SIDE, out);
            _tile_stored(3, outputs + 3 * SIDE, out);
        }
    }

    // What is read at key j of a part, or behind its keys.
    Soon after_key(const Part& part, int j) const {
        if (j >= part.keys) return after_value(part, j - part.keys, 0);
        return soon_keys(part, part.begin + j, 0);
    }
    // As above, of the values of the dimensions from d on; behind them are the keys of the next part.
    Soon after_value(const Part& part, int j, int d) const {
        const int position = part.begin + j;
        if (j >= part.keys) return position < part.length ? soon_keys(part, position, d) : Soon{};
        if (!in_pairs(heads_)) return {};
        return {value_block(part, position) + d * 2, size_t(heads_.dim) * 2};
    }
    Soon soon_keys(const Part& part, int position, int d) const {
        if (!in_pairs(heads_)) return {};
        return {key_block(part, position) + d * SIDE, 4 * LINE};
    }

    // Keys of SIDE positions from a part's j on, [dim / 2][SIDE][2]: where they are, or a copy. What is behind the request's
    // end is its own or another's, and as finite as all that is kept.
    const bfloat16* key_columns(const Part& part, int j, int copies) const {
        const int size = heads_.block_size, dim = heads_.dim, position = part.begin + j;
        if (in_pairs(heads_)) return key_block(part, position);
        bfloat16* copy = empty(dim, copies);
        for (int i = 0; i < SIDE && is_kept(part.request, position + i); ++i) {
            const bfloat16* from = kept_.keys + kept_.at(part.request, part.head, position + i) + (position + i) % size;
            for (int d = 0; d < dim; ++d) copy[size_t(d / 2) * 2 * SIDE + 2 * i + d % 2] = from[size_t(d) * size];
        }
        return copy;
    }

    // Values of SIDE positions, [SIDE / 2][dim][2].
    const bfloat16* value_columns(const Part& part, int j) const {
        const int size = heads_.block_size, dim = heads_.dim, position = part.begin + j;
        if (in_pairs(heads_)) return value_block(part, position);
        bfloat16* copy = empty(dim, 0);
        for (int i = 0; i < SIDE && is_kept(part.request, position + i); ++i) {
            const size_t block = kept_.at(part.request, part.head, position + i);
            const bfloat16* from = kept_.values + block + size_t((position + i) % size) * dim;
            for (int d = 0; d < dim; ++d) copy[value_place(heads_, i, d)] = from[d];
        }
        settle();
        return copy;
    }

    const bfloat16* key_block(const Part& part, int position) const {
        const size_t block = kept_.at(part.request, part.head, position);
        return kept_.keys + block + key_place(heads_, position % heads_.block_size, 0);
    }
    const bfloat16* value_block(const Part& part, int position) const {
        const size_t block = kept_.at(part.request, part.head, position);
        return kept_.values + block + value_place(heads_, position % heads_.block_size, 0);
    }

    bool is_kept(int request, int position) const {
        const int blocks = kept_.batch.table_starts[request + 1] - kept_.batch.table_starts[request];
        return position < blocks * heads_.block_size;
    }

    // Room for one of four copies.
    static bfloat16* empty(int dim, int which) {
        thread_local std::vector<bfloat16> memory[4];
        memory[which].assign(size_t(SIDE) * dim, bfloat16{0});
        return memory[which].data();
    }

    const Kept<bfloat16> kept_;
    const Heads& heads_;
};

#else

inline bool by_tiles(const Heads&, bool) { return false; }

#endif

// A token's key and value of one head to where attention reads them.
template <class Number>
inline void keep(const Kept<Number>& kept, int request, int head, int position, const float* key, const float* value) {
    const size_t at = kept.at(request, head, position);
    const int offset = position % kept.heads.block_size;
#if defined(__AMX_BF16__)
    if constexpr (std::is_same_v<Number, bfloat16>)
        if (by_tiles(kept.heads, true) && in_pairs(kept.heads)) return keep_in_pairs(kept, at, offset, key, value);
#endif
    keep_plain(kept, at, offset, key, value);
}

// Calls work(attention) with the one that reads it so.
template <class Number, class Work>
inline void with_attention(const Kept<Number>& kept, const Work& work) {
#if defined(__AMX_BF16__)
    if constexpr (std::is_same_v<Number, bfloat16>)
        if (by_tiles(kept.heads, true)) return work(TileAttention(kept));
#endif
    work(Attention<Number>(kept));
}

// Rows of a span's queries, times the heads that share a key head, at most: three tiles of either kind.
inline int span_height(const Heads& heads, bool bfloat16_cache) { return by_tiles(heads, bfloat16_cache) ? 48 : HEIGHT; }
