// The rows of queries of one span and key head, and their softmax while they go through the keys.
//
// A row goes through its keys in tiles that begin at multiples of KEYS. (Online softmax: Milakov and Gimelshein, 2018.)
#pragma once

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "batch.h"
#include "powers.h"
#include "products.h"

constexpr int KEYS = 256;  // of a tile
// The highest score before the first key. It is finite, so that a tile of which a query sees no key changes nothing: the
// weights are e^(-inf - LOWEST) = 0, and earlier sums are multiplied by e^(LOWEST - LOWEST) = 1.
constexpr float LOWEST = std::numeric_limits<float>::lowest();


// Sets the scores of some vectors to -inf, except those of the `window` keys before `end`.
template <size_t V>
inline void hide(Vector (&scores)[V], int end, int window) {
    for (Vector& v : scores) {
        v = (numbers() < float(end)) & (numbers() >= float(end - window)) ? v : broadcast(-INFINITY);
        end -= LANES;
    }
}

// Calls lay(take) with a function that returns memory for so many numbers. Each array begins on a cache line, because a
// vector across two lines costs twice.
template <class Lay>
inline void lay_out(const Lay& lay) {
    thread_local Numbers memory;
    size_t taken = 0;
    const auto take = [&](size_t size) { return memory.data() + std::exchange(taken, taken + (size + 15) / 16 * 16); };
    lay(take);
    if (memory.size() >= taken) return;
    memory.resize(taken);
    taken = 0;
    lay(take);
}

struct AttentionRows {
    const Heads& heads;
    const int window, visible, more;  // keys that the first token sees, and more of them that each further one sees
    const Tiles own;
    float* scores;   // [rows][KEYS], of the tile of keys; then their weights
    float* best;     // [rows][LANES]: the highest score of the tile in each lane
    float* highest;  // [tiles][LANES]: the highest score of each row so far
    float* shrink;   // [tiles][LANES]: the factor for earlier sums
    float* totals;   // [rows][LANES]
    float* outputs;  // [rows][padded dim]

    // `length`: keys of the request that any of the rows sees.
    AttentionRows(const Heads& of, int window, int first_position, int length, int rows)
        : heads(of),
          window(window),
          visible(of.both_ways ? length : first_position + 1),
          more(of.both_ways ? 0 : 1),
          own(rows) {}

    template <class Take>
    void lay(const Take& take) {
        const size_t rows = own.count, tiles = own.tiles;
        scores = take(rows * KEYS), best = take(rows * LANES), totals = take(rows * LANES);
        highest = take(tiles * LANES), shrink = take(tiles * LANES), outputs = take(rows * heads.padded_dim());
    }

    // With `sinks` of the heads, each row begins as after a key of that score whose value is 0.
    void begin(const float* sinks) const {
        std::fill_n(highest, own.tiles * LANES, LOWEST);
        std::fill_n(totals, size_t(own.count) * LANES, 0.0f);
        std::fill_n(outputs, size_t(own.count) * heads.padded_dim(), 0.0f);
        for (int row = 0; sinks && row < own.count; ++row) {
            highest[row / own.height * LANES + row % own.height] = sinks[row % heads.group()];
            totals[size_t(row) * LANES] = 1.0f;
        }
    }

    void begin_keys() const { std::fill_n(best, size_t(own.count) * LANES, -INFINITY); }

    // Keeps the scores of a tile's rows for the keys from `begin` + j on. Each row sees other keys.
    template <int R, int V>
    void keep(int tile, int begin, int j, Vector (&sums)[R][V]) const {
        const int first = visible - begin;
        if (heads.soft_cap > 0) soft_cap(sums, heads.soft_cap);
        if (first < j + V * LANES || j < first + (own.count - 1) / heads.group() * more - window)
            for (int r = 0; r < R; ++r)
                hide(sums[r], first + (tile * own.height + r) / heads.group() * more - j, window);
        for (int r = 0; r < R; ++r) {
            const int row = tile * own.height + r;
            float *to = scores + size_t(row) * KEYS + j, *own_best = best + size_t(row) * LANES;
            Vector now = load(own_best);
            for (int v = 0; v < V; ++v) {
                store(to + v * LANES, sums[r][v]);
                now = larger(sums[r][v], now);
            }
            store(own_best, now);
        }
    }

    // Updates the highest scores of a tile's rows, and the factor for their earlier sums.
    void update_highest(int tile) const {
        Vector square[LANES];
        const float* of_tile = best + size_t(tile * own.height) * LANES;
        for (int r = 0; r < LANES; ++r) square[r] = load(of_tile + (r < own.rows_of(tile) ? r : 0) * LANES);
        transpose(square);
        const Vector before = load(highest + tile * LANES);
        Vector now = before;
        for (const Vector& column : square) now = larger(column, now);
        store(highest + tile * LANES, now);
        store(shrink + tile * LANES, exponential(before - now));
    }

    // Writes the outputs of all tokens, divided by the sums of their weights. `token` is the first one's row in `to`.
    template <class Input>
    void put(int token, int head, const Input& to) const {
        for (int of = 0; of < heads.group(); ++of) put_head(of, token, head * heads.group() + of, to);
    }

private:
    template <class Input>
    void put_head(int of, int token, int head, const Input& to) const {
        const int dim = heads.dim, padded = heads.padded_dim(), group = heads.group(), count = own.count / group;
        for (int row = of; row < own.count; row += group) {
            const Vector share = broadcast(1.0f / total(load(totals + size_t(row) * LANES)));
            float* sums = outputs + size_t(row) * padded;
            for (int d = 0; d < padded; d += LANES) store(sums + d, load(sums + d) * share);
        }
        for (int done = 0, some; done < count; done += some) {
            some = std::min(count - done, to.neighbours(token + done));
            const float* from = outputs + size_t(done * group + of) * padded;
            to.copy(token + done, some, head * dim, from, size_t(group) * padded, dim);
        }
    }
};
