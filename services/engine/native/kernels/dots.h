// Products of bfloat16 rows by bfloat16 weights, on the units that some processors have for them. Sums are float32.
//
// A row's sums run over the depth in one order here too, and in whole steps of a tile: they are bitwise the same alone
// and in any company.
#pragma once

#include "products.h"

constexpr int DEPTHS = 32;  // a depth is filled up with zeros to a multiple of it

constexpr int whole_steps(int depth) { return (depth + DEPTHS - 1) / DEPTHS * DEPTHS; }

// In panels [depth / 2][WIDTH][2].
struct Dotted : bfloat16 {};

// Rows of one depth, one after the other; behind them is room up to a whole block.
struct ShortRows {
    const bfloat16* first;
    size_t stride;
};

#if defined(__AMX_BF16__)
#define HAS_UNITS

#include <sys/syscall.h>
#include <unistd.h>

constexpr int BLOCK = 32;  // rows: two tiles of 16, by two tiles of 16 columns

// Linux saves the tiles of processes that asked for them.
inline bool ask_for_tiles() {
    constexpr long REQUEST = 0x1023, TILES = 18;
    return syscall(SYS_arch_prctl, REQUEST, TILES) == 0;
}
inline const bool HAS_TILES = ask_for_tiles();

inline const char* units() { return HAS_TILES ? "amx" : ""; }

// Each tile has 16 rows of 64 bytes; but tiles 0 to 5 have `height`, and for products of `pairs` pairs there are tiles 5 and
// 7: rows by them, and them by columns.
struct alignas(64) Shapes {
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};

    explicit Shapes(int pairs, int height = 16) {
        std::fill_n(rows, 6, uint8_t(height));
        bytes[5] = uint16_t(4 * pairs);
        rows[7] = uint8_t(pairs);
    }
};

// The intrinsic does not tell the compiler that all of it is read.
inline void load_shapes(const Shapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }

// A thread has tiles as long as this lives.
struct Units {
    Units() {
        if (HAS_TILES) load_shapes(Shapes(16));
    }
    ~Units() {
        if (HAS_TILES) _tile_release();
    }
    Units(const Units&) = delete;
};

// And are for `height` rows, two of them for products of 8 pairs, as long as this lives.
struct HalfTiles {
    explicit HalfTiles(int height) { load_shapes(Shapes(8, height)); }
    ~HalfTiles() { load_shapes(Shapes(16)); }
    HalfTiles(const HalfTiles&) = delete;
};

// What was written is in memory: the compiler does not know that tiles are loaded from there.
inline void settle() { asm volatile("" ::: "memory"); }

// sums [16 * TILES][WIDTH] of as many rows by a panel; fetch() before each step.
template <int TILES, class Fetch>
inline void sum_tiles(const ShortRows& rows, const Dotted* panel, int steps, float* sums, Fetch& fetch) {
    const size_t row = rows.stride * sizeof(bfloat16), line = WIDTH * 2 * sizeof(bfloat16);
    const bfloat16 *upper = rows.first, *lower = upper + 16 * rows.stride;
    settle();
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (TILES == 2) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int step = 0; step < steps; ++step, upper += DEPTHS, lower += DEPTHS, panel += DEPTHS * WIDTH) {
        fetch();
        _tile_loadd(4, upper, row);
        _tile_loadd(6, panel, line);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + WIDTH, line);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (TILES == 2) {
            _tile_loadd(5, lower, row);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    constexpr int BYTES = WIDTH * sizeof(float);
    _tile_stored(0, sums, BYTES);
    _tile_stored(1, sums + LANES, BYTES);
    if constexpr (TILES == 2) {
        _tile_stored(2, sums + 16 * WIDTH, BYTES);
        _tile_stored(3, sums + 16 * WIDTH + LANES, BYTES);
    }
}

// Calls finish(row, sums[rows][2]) for `count` rows, up to BLOCK, by a panel.
template <class Fetch, class Finish>
inline void multiply_block(const ShortRows& rows, int count, const Dotted* panel, int depth, Fetch& fetch,
                           const Finish& finish) {
    alignas(64) float sums[BLOCK * WIDTH];
    if (count > 16)
        sum_tiles<2>(rows, panel, depth / DEPTHS, sums, fetch);
    else
        sum_tiles<1>(rows, panel, depth / DEPTHS, sums, fetch);
    for (int r = 0; r < count; ++r) {
        Vector both[1][2] = {{load(sums + r * WIDTH), load(sums + r * WIDTH + LANES)}};
        finish(r, both);
    }
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

// sums[R][2] of as many rows by a panel: a pair of a row's numbers by the pairs of 16 columns.
//
// Not inlined, as sum_products.
template <int R, class Fetch>
__attribute__((noinline)) void sum_pairs(Vector (&sums)[R][2], const ShortRows& rows, const Dotted* panel, int depth,
                                         Fetch& fetch) {
    __m512 own[R][2] = {};
    for (int k = 0; k < depth; k += 2, panel += 2 * WIDTH) {
        if (k % DEPTHS == 0) fetch();
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

// As above.
template <class Fetch, class Finish>
inline void multiply_block(const ShortRows& rows, int count, const Dotted* panel, int depth, Fetch& fetch,
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
