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

#if defined(__AMX_BF16__)
#define HAS_UNITS

constexpr int BLOCK = 32;  // rows: two tiles of 16, by two tiles of 16 columns

inline const char* units() { return HAS_TILES ? "amx" : ""; }

// sums [16 * TILES][WIDTH] of 16 * TILES rows by a panel; calls fetch() FETCHES times in each step.
//
// One part of the panel is loaded twice, so that six tiles suffice; see Units.
template <int TILES, class Fetch>
inline void sum_tiles(const Bfloat16Rows& rows, const Dotted* panel, int steps, float* sums, Fetch& fetch) {
    const size_t row = rows.stride * sizeof(bfloat16), line = WIDTH * 2 * sizeof(bfloat16);
    const bfloat16 *upper = rows.first, *lower = upper + 16 * rows.stride;
    settle();
    for_tiles<2 * TILES>([](auto T) { clear_tile<T>(); });
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
    for_tiles<2 * TILES>([&](auto T) { store_tile<T>(sums + T / 2 * 16 * WIDTH + T % 2 * LANES, WIDTH * sizeof(float)); });
}

template <int R, class Finish>
inline void finish_rows(const float* sums, int row, const Finish& finish) {
    Vector both[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) both[r][half] = load(sums + (row + r) * WIDTH + half * LANES);
    finish(row, both);
}

template <class Finish>
inline void finish_block(const float* sums, int count, const Finish& finish) {
    constexpr int AT_ONCE = 4;  // rows, so that the work on one does not wait for another
    int row = 0;
    for (; row + AT_ONCE <= count; row += AT_ONCE) finish_rows<AT_ONCE>(sums, row, finish);
    for (; row < count; ++row) finish_rows<1>(sums, row, finish);
}

// Calls finish(row, sums[rows][2]) for `count` rows, up to BLOCK, by a panel.
template <class Fetch, class Finish>
inline void multiply_block(const Bfloat16Rows& rows, int count, const Dotted* panel, int depth, Fetch& fetch,
                           const Finish& finish) {
    alignas(64) float sums[BLOCK * WIDTH];
    if (count > 16)
        sum_tiles<2>(rows, panel, depth / DEPTHS, sums, fetch);
    else
        sum_tiles<1>(rows, panel, depth / DEPTHS, sums, fetch);
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
template <class Fetch, class Finish>
inline void multiply_block(const Bfloat16Rows& rows, int count, const Dotted* panel, int depth, Fetch& fetch,
                           const Finish& finish) {
    with_rows(count, [&](auto R) {
        Vector sums[R][2];
        sum_pairs<R>(sums, rows, panel, depth, fetch);
        finish(0, sums);
    });
}

#else

inline const char* units() { return ""; }

#endif
