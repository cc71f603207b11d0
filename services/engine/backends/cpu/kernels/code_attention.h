// Attention over keys and values in eight bits, by sums of integers.
//
// A query is rounded to 16 bits with a scale of its own, which is exacter than bfloat16. So are the weights of a tile of
// keys, each times the scale of its value. Sums of integers are exact; all that follows is float32. As in attention.h, a
// row's numbers depend on its own keys alone: its scales and sums do not change with the other rows or keys of a span.
#pragma once

#include <climits>

#include "attention_rows.h"
#include "code_cache.h"
#include "code_products.h"

class CodeAttention {
public:
    explicit CodeAttention(const LayerCache<int8_t>& cache) : cache_(cache), heads_(cache.heads) {}

    // See Attention::run.
    template <class Input>
    void run(const Span& span, int head, const float* query, int width, const Input& outputs, int origin) const {
        const int group = heads_.group(), first_position = cache_.batch.contexts[span.request] + span.first;
        const int first_token = cache_.batch.starts[span.request] + span.first;
        const int length = first_position + span.count;
        const Scratch s(heads_, cache_.window, first_position, length, span.count * group);
        const AttentionRows& rows = s.rows;
        for (int row = 0; row < rows.own.count; ++row)
            write_query(s, row, query + size_t(first_token + row / group) * width + (head * group + row % group) * heads_.dim);
        rows.begin(cache_.sinks_of(head));
        for (int begin = cache_.first_key(first_position), end; begin < length; begin = end) {
            end = std::min(length, (begin / KEYS + 1) * KEYS);
            const KeyRange range{span.request, head, begin, end - begin, length};
            copy_scales(s, range);
            rows.begin_keys();
            score_all(s, range);
            for (int tile = 0; tile < rows.own.tiles; ++tile) rows.update_highest(tile);
            for (int row = 0; row < rows.own.count; ++row) weigh(s, row, range.count);
            add_values(s, range);
        }
        rows.put(first_token - origin, head, outputs);
    }

private:
    static constexpr int MOST = SHRT_MAX;
    // The largest code of a query, so that no sum is larger than an integer.
    int most_of_query() const { return std::min(MOST, INT_MAX / (127 * heads_.dim)); }

    // `count` keys from `begin` on, of the `length` that a request's head looks at.
    struct KeyRange {
        int request, head, begin, count, length;
    };

    struct Scratch {
        AttentionRows rows;
        int pairs;  // of dimensions
        float *queries, *query_scales;     // pairs of codes [tile][pairs][height]; [rows]
        float *weights, *weight_scales;    // codes [rows][KEYS]; [rows]
        float *key_scales, *value_scales;  // [KEYS]
        float *keys, *values;              // copies [KEYS / LANES][pairs][LANES][2] and [KEYS / 2][padded][2]

        Scratch(const Heads& heads, int window, int first_position, int length, int count)
            : rows(heads, window, first_position, length, count), pairs((heads.dim + 1) / 2) {
            const size_t copied = codes_in_pairs(heads) ? 0 : KEYS * heads.padded_dim() / sizeof(float);
            lay_out([&](const auto& take) {
                rows.lay(take);
                queries = take(rows.own.size(pairs)), query_scales = take(count);
                weights = take(size_t(count) * KEYS / 2), weight_scales = take(count);
                key_scales = take(KEYS), value_scales = take(KEYS);
                keys = take(copied), values = take(copied);
            });
        }
        int16_t* query(int row) const {
            return reinterpret_cast<int16_t*>(queries) + 2 * rows.own.at(row, 0, pairs);
        }
        int16_t* weights_of(int row) const { return reinterpret_cast<int16_t*>(weights) + size_t(row) * KEYS; }
        int8_t* key_copy(int j) const { return reinterpret_cast<int8_t*>(keys) + size_t(j / LANES) * pairs * LANES * 2; }
        int8_t* value_copy() const { return reinterpret_cast<int8_t*>(values); }
    };

    int offset(int position) const { return position % heads_.block_size; }
    size_t at(const KeyRange& range, int j) const { return cache_.at(range.request, range.head, range.begin + j); }

    // Where codes in pairs begin.
    const int8_t* key(const KeyRange& range, int j) const { return cache_.keys + at(range, j) + 2 * offset(range.begin + j); }
    const int8_t* value(const KeyRange& range, int j) const {
        return cache_.values + at(range, j) + size_t(offset(range.begin + j)) * heads_.dim;
    }

    void write_query(const Scratch& s, int row, const float* from) const {
        float top = 0.0f, odd = 0.0f;
        for (int d = 0; d < heads_.dim; ++d) {
            top = std::max(top, std::abs(from[d]));
            odd += from[d] * 0.0f;  // NaN of what is not finite
        }
        const int most = most_of_query();
        const float inverse = top > 1e-30f ? most / top : 0.0f;
        int16_t* to = s.query(row);
        for (int d = 0; d < 2 * s.pairs; d += LANES) {
            Vector part{};
            if (const int some = std::min(LANES, heads_.dim - d); some > 0) std::memcpy(&part, from + d, some * sizeof(float));
            const Ints codes = rounded(part * inverse);
            for (int i = 0; i < std::min(LANES, 2 * s.pairs - d); ++i)
                to[size_t(d + i) / 2 * 2 * s.rows.own.height + i % 2] = int16_t(codes[i]);
        }
        s.query_scales[row] = (top / most + odd) * heads_.scaling;
    }

    // The scales of the tile's keys and values, and zeros up to a whole vector.
    void copy_scales(const Scratch& s, const KeyRange& range) const {
        const int whole = (range.count + LANES - 1) / LANES * LANES;
        std::fill(s.value_scales + range.count, s.value_scales + whole, 0.0f);
        for (int j = 0, some; j < range.count; j += some) {
            const int first = offset(range.begin + j);
            some = std::min(range.count - j, heads_.block_size - first);
            ::copy_scales(scale_at(heads_, cache_.keys + at(range, j), first), some, s.key_scales + j);
            ::copy_scales(scale_at(heads_, cache_.values + at(range, j), first), some, s.value_scales + j);
        }
    }

    void score_all(const Scratch& s, const KeyRange& range) const {
        if (!codes_in_pairs(heads_)) copy_keys(s, range);
        int j = 0;
        if (s.rows.own.count <= FEW)
            for (; j + 3 * LANES < range.count; j += 4 * LANES) score<4, FEW>(s, range, j);
        for (; j < range.count; j += WIDTH) score<2, ROWS>(s, range, j);
    }

    void copy_keys(const Scratch& s, const KeyRange& range) const {
        const size_t size = heads_.block_size;
        std::fill_n(s.key_copy(0), size_t(KEYS) * s.pairs * 2, int8_t{0});
        for (int j = 0; j < range.count; ++j) {
            const int8_t* from = cache_.keys + at(range, j) + offset(range.begin + j);
            int8_t* to = s.key_copy(j) + j % LANES * 2;
            for (int d = 0; d < heads_.dim; ++d) to[d / 2 * LANES * 2 + d % 2] = from[d * size];
        }
    }

    // The scores of V vectors of keys. Meanwhile the same keys' values are prefetched, half of the vectors by each run.
    template <int V, int MOST_ROWS>
    void score(const Scratch& s, const KeyRange& range, int j) const {
        const AttentionRows& rows = s.rows;
        const bool in_place = codes_in_pairs(heads_);
        const size_t step = 2 * (in_place ? heads_.block_size : LANES);
        CodeRun<V> runs[2];
        for (int v = 0; v < V; ++v) {
            const int from = j + v * LANES < range.count ? j + v * LANES : j;
            runs[0].columns[v] = in_place ? key(range, from) : s.key_copy(from);
            runs[v % 2].soon[v / 2] = in_place ? value(range, from) : runs[0].columns[v];
            runs[1].columns[v] = runs[0].columns[v] + s.pairs / 2 * step;
        }
        runs[0].count = s.pairs / 2, runs[1].count = s.pairs - s.pairs / 2;
        runs[0].further = runs[1].further = in_place ? LINE : 0;
        for (int tile = 0; tile < rows.own.tiles; ++tile)
            with_rows<MOST_ROWS>(rows.own.rows_of(tile), [&](auto R) {
                Ints sums[R][V];
                const float* queries = s.queries + size_t(tile) * s.pairs * rows.own.height;
                sum_codes<R, V, 1>(sums, reinterpret_cast<const int32_t*>(queries), rows.own.height, runs, 2, step);
                Vector scores[R][V];
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < V; ++v)
                        scores[r][v] = __builtin_convertvector(sums[r][v], Vector) *
                                       (load(s.key_scales + j + v * LANES) * s.query_scales[tile * rows.own.height + r]);
                rows.keep(tile, range.begin, j, scores);
            });
    }

    // Turns a row's scores into weights exp(score - highest), times the scales of values, and rounds them.
    void weigh(const Scratch& s, int row, int count) const {
        const int tile = row / s.rows.own.height, of = tile * LANES + row % s.rows.own.height;
        float *scores = s.rows.scores + size_t(row) * KEYS, *totals = s.rows.totals + size_t(row) * LANES;
        const Vector now = broadcast(s.rows.highest[of]);
        Vector sum = load(totals) * s.rows.shrink[of];
        Naturals most{};  // of the weights' bits, which are in the order of the weights; those of NaN are the largest
        for (int j = 0; j < count; j += LANES) {
            const Vector weight = exponential(load(scores + j) - now);
            const Vector scaled = weight * load(s.value_scales + j);
            sum += weight;
            store(scores + j, scaled);
            const Naturals bits = same_bits<Naturals>(scaled);
            most = bits > most ? bits : most;
        }
        store(totals, sum);
        uint32_t top_bits = 0;
        for (int i = 0; i < LANES; ++i) top_bits = std::max<uint32_t>(top_bits, most[i]);
        const float top = same_bits<float>(top_bits), inverse = top > 1e-30f ? MOST / top : 0.0f;
        for (int j = 0; j < count; j += LANES) store_shorts(s.weights_of(row) + j, rounded(load(scores + j) * inverse));
        s.weight_scales[row] = top / MOST;
    }

    void add_values(const Scratch& s, const KeyRange& range) const {
        if (!codes_in_pairs(heads_)) copy_values(s, range);
        const int padded = heads_.padded_dim();
        int d = 0;
        if (s.rows.own.count <= FEW)
            for (; d + 2 * WIDTH <= padded; d += 2 * WIDTH) add_columns<4, FEW>(s, range, d);
        for (; d < padded; d += WIDTH) add_columns<2, ROWS>(s, range, d);
    }

    void copy_values(const Scratch& s, const KeyRange& range) const {
        const size_t padded = heads_.padded_dim();
        for (int j = 0; j < range.count; ++j) {
            const int8_t* from = value(range, j);
            int8_t* to = s.value_copy() + j / 2 * padded * 2 + j % 2;
            for (int d = 0; d < heads_.dim; ++d) to[d * 2] = from[d];
        }
    }

    // Adds V vectors of dimensions from d on. Meanwhile the keys that follow KEYS later are prefetched, a share by each V.
    // A last odd position has a neighbour of weight 0.
    template <int V, int MOST_ROWS>
    void add_columns(const Scratch& s, const KeyRange& range, int d) const {
        const AttentionRows& rows = s.rows;
        CodeRun<V> runs[KEYS];
        int found = 0;
        if (!codes_in_pairs(heads_)) runs[found++] = columns<V>(s.value_copy() + d * 2, range.count);
        else
            for (int j = 0, some; j < range.count; j += some, ++found) {
                some = std::min(range.count - j, heads_.block_size - offset(range.begin + j));
                runs[found] = columns<V>(value(range, j) + d * 2, some);
                if (range.begin + j + KEYS < range.length) prefetch_keys(range, j + KEYS, some, d, runs[found]);
            }
        for (int tile = 0; tile < rows.own.tiles; ++tile)
            with_rows<MOST_ROWS>(rows.own.rows_of(tile), [&](auto R) {
                const int row = tile * rows.own.height, padded = heads_.padded_dim();
                Ints sums[R][V];
                const auto* weights = reinterpret_cast<const int32_t*>(s.weights + size_t(row) * KEYS / 2);
                sum_codes<R, V, KEYS / 2>(sums, weights, 1, runs, found, padded * 2);
                float* outputs = rows.outputs + size_t(row) * padded + d;
                for (int r = 0; r < R; ++r, outputs += padded)
                    for (int v = 0; v < V; ++v) {
                        const Vector sum = __builtin_convertvector(sums[r][v], Vector) * s.weight_scales[row + r];
                        store(outputs + v * LANES, load(outputs + v * LANES) * rows.shrink[tile * LANES + r] + sum);
                    }
            });
    }

    template <int V>
    static CodeRun<V> columns(const int8_t* first, int count) {
        CodeRun<V> run;
        for (int v = 0; v < V; ++v) run.columns[v] = first + v * LANES * 2;
        for (int v = 0; v < V / 2; ++v) run.soon[v] = first;
        run.count = (count + 1) / 2, run.further = 0;
        return run;
    }

    // Makes a run over `some` values prefetch the keys from j on, and their scales.
    template <int V>
    void prefetch_keys(const KeyRange& range, int j, int some, int d, CodeRun<V>& run) const {
        const int first = offset(range.begin + j);
        const int8_t* from = cache_.keys + at(range, j) + size_t(first) * heads_.dim + size_t(some) * d;
        for (int v = 0; v < V / 2; ++v) run.soon[v] = from + v * LINE;
        run.further = V / 2 * LINE;
        if (d) return;
        prefetch<0, 2>(scale_at(heads_, cache_.keys + at(range, j), first));
        prefetch<0, 2>(scale_at(heads_, cache_.values + at(range, j), first));
    }

    static constexpr int LINE = 64;  // bytes of a cache line

    const LayerCache<int8_t> cache_;
    const Heads& heads_;
};
