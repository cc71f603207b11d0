// Products of bfloat16 rows by bfloat16 weights, on processors with units for them (AMX, AVX512-BF16). Sums are
// float32.
//
// Here too a row's sums run over the depth in one order, in whole steps of a tile, so they are bitwise the same in any
// batch.
#pragma once

#include "products.h"
#include "tiles.h"

constexpr int DEPTHS = 32;  // a depth is filled up with zeros to a multiple of it

constexpr int FETCHES = 4;  // prefetches in a step of DEPTHS

constexpr int whole_steps(int depth) { return (depth + DEPTHS - 1) / DEPTHS * DEPTHS; }

// Panels are [depth / 2][WIDTH][2]: pairs of depths.
struct Dotted : bfloat16 {};

// Rows of one depth, one after another, with room behind them up to a whole block.
struct Bfloat16Rows {
    const bfloat16* first;
    size_t stride;
};

// Prefetches `bytes` of panels from `at` on for `blocks` blocks of rows, a few lines at a time, because the processor waits
// if there are many.
class PanelPrefetch {
public:
    PanelPrefetch(const void* at, size_t bytes, int blocks, int lines = LINES)
        : at_(static_cast<const char*>(at)), end_(at_ + bytes), lines_((lines + blocks - 1) / blocks) {}
    void operator()() {
        if (at_ >= end_) return;
        for (int i = 0; i < lines_; ++i, at_ += 64) prefetch<0, 2>(at_);
    }

private:
    static constexpr int LINES = DEPTHS * WIDTH * sizeof(bfloat16) / 64 / FETCHES;  // cache lines of one prefetch

    const char *at_, *const end_;
    const int lines_;
};

#if defined(__AMX_BF16__)
#define HAS_UNITS

constexpr int BLOCK = 32;  // rows: two tiles of 16, by two tiles of 16 columns

inline const char* units() { return HAS_TILES ? "amx" : ""; }

// sums [16 * TILES][WIDTH] of 16 * TILES rows by a panel, or by a part of one: not FRESH, added to the sums that are
// there. Calls fetch() FETCHES times in each step.
//
// One part of the panel is loaded twice, so that six tiles suffice; see Units.
template <int TILES, bool FRESH, class Fetch>
inline void sum_tiles(const Bfloat16Rows& rows, const Dotted* panel, int steps, Vector (*sums)[2], Fetch& fetch) {
    const size_t row = rows.stride * sizeof(bfloat16), line = WIDTH * 2 * sizeof(bfloat16);
    const bfloat16 *upper = rows.first, *lower = upper + 16 * rows.stride;
    const auto place = [&](int tile) { return &sums[tile / 2 * 16][tile % 2]; };
    settle();
    for_tiles<2 * TILES>([&](auto T) {
        if constexpr (FRESH)
            clear_tile<T>();
        else
            load_tile<T>(place(T), sizeof *sums);
    });
    for (int step = 0; step < steps; ++step, upper += DEPTHS, lower += DEPTHS, panel += DEPTHS * WIDTH) {
        fetch();
        load_tile<4>(upper, row);
        load_tile<6>(panel, line);
        multiply_tiles<0, 4, 6>();
        fetch();
        load_tile<6>(panel + WIDTH, line);
        multiply_tiles<1, 4, 6>();
        fetch();
        if constexpr (TILES == 2) {
            load_tile<4>(lower, row);
            multiply_tiles<3, 4, 6>();
            load_tile<6>(panel, line);
            multiply_tiles<2, 4, 6>();
        }
        fetch();
    }
    for_tiles<2 * TILES>([&](auto T) { store_tile<T>(place(T), sizeof *sums); });
}

// sums [BLOCK] of `count` rows, up to BLOCK, by `depth` depths of a panel; see sum_tiles.
template <bool FRESH, class Fetch>
inline void sum_block(const Bfloat16Rows& rows, int count, const Dotted* panel, int depth, Vector (*sums)[2],
                      Fetch& fetch) {
    if (count > LANES)
        sum_tiles<2, FRESH>(rows, panel, depth / DEPTHS, sums, fetch);
    else
        sum_tiles<1, FRESH>(rows, panel, depth / DEPTHS, sums, fetch);
}

// Calls finish(row, sums) for `count` rows of a block.
template <class Use>
inline void finish_block(Vector (*sums)[2], int count, const Use& finish) {
    for (int row = 0; row < count; row += LANES) finish(row, Sums(sums + row, std::min(LANES, count - row)));
}

// Multiplies `count` rows, up to BLOCK, by a panel; calls finish(row, sums).
template <class Fetch, class Use>
inline void multiply_block(const Bfloat16Rows& rows, int count, const Dotted* panel, int depth, Fetch& fetch,
                           const Use& finish) {
    Vector sums[BLOCK][2];
    sum_block<true>(rows, count, panel, depth, sums, fetch);
    finish_block(sums, count, finish);
}

#elif defined(__AVX512BF16__)
#define HAS_UNITS

constexpr int BLOCK = ROWS;

inline const char* units() { return "avx512_bf16"; }

inline int32_t load_pair(const bfloat16* from) {
    int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return pair;
}

struct Units {
    Units() {}
    ~Units() {}
};

// sums[R][2] of R rows by a panel: a pair of a row's numbers by the pairs of 16 columns.
//
// Not inlined, see sum_products.
template <int R, class Fetch>
__attribute__((noinline)) void sum_pairs(Vector (&sums)[R][2], const Bfloat16Rows& rows, const Dotted* panel, int depth,
                                         Fetch& fetch) {
    __m512 own[R][2] = {};
    for (int k = 0; k < depth; k += 2, panel += 2 * WIDTH) {
        if (k % (DEPTHS / FETCHES) == 0) fetch();
        __m512bh columns[2];
        std::memcpy(&columns, panel, sizeof columns);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const __m512bh x = same_bits<__m512bh>(_mm512_set1_epi32(load_pair(rows.first + r * rows.stride + k)));
            own[r][0] = _mm512_dpbf16_ps(own[r][0], x, columns[0]);
            own[r][1] = _mm512_dpbf16_ps(own[r][1], x, columns[1]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) sums[r][half] = Vector(own[r][half]);
}

// See above.
template <class Fetch, class Use>
inline void multiply_block(const Bfloat16Rows& rows, int count, const Dotted* panel, int depth, Fetch& fetch,
                           const Use& finish) {
    with_rows(count, [&](auto R) {
        Vector sums[R][2];
        sum_pairs<R>(sums, rows, panel, depth, fetch);
        finish(0, sums);
    });
}

#else

inline const char* units() { return ""; }

#endif
