// Products of floats on tiles that multiply bfloat16: a float is the sum of three bfloat16, its thirds, and of the nine
// products of two floats' thirds the six largest are added. The three that are left out are less than what float32 rounds.
// A tile's sums of 32 depths begin at zero, so a product is nearer to the exact one than a sum of floats one after another.
//
// Here too a row's sums run over the depth in one order, so they are bitwise the same in any batch.
#pragma once

#include "dots.h"

#if defined(__AMX_BF16__)

constexpr int THIRDS = 3;
constexpr int STEP_SIZE = THIRDS * DEPTHS * BLOCK;  // numbers of a block, or of a panel, in a step of DEPTHS
static_assert(BLOCK == WIDTH);

// The thirds that are multiplied, in an order in which many stay in their tiles.
constexpr int PRODUCTS = 6, OF_ROWS[] = {0, 0, 1, 1, 2, 0}, OF_PANEL[] = {2, 1, 1, 0, 0, 0};

inline Ints upper_half(Ints v) { return v & int32_t(0xFFFF0000); }

// Thirds of x in the upper halves: what is cut off is the rest, so their sum is x. Infinity becomes NaN, as NaN does.
inline void cut(Vector x, Ints (&thirds)[THIRDS]) {
    for (Ints& third : thirds) {
        third = upper_half(same_bits<Ints>(x));
        x -= same_bits<Vector>(third);
    }
}

// Writes the thirds of `count` depths of a panel, [depth][WIDTH], as a step: [third][depth / 2][WIDTH][2].
inline void cut_step(const float* from, int count, bfloat16* to) {
    for (int k = 0; k < DEPTHS; k += 2)
        for (int half = 0; half < WIDTH; half += LANES) {
            const float* at = from + k * WIDTH + half;
            Ints first[THIRDS], second[THIRDS];
            cut(k < count ? load(at) : Vector{}, first);
            cut(k + 1 < count ? load(at + WIDTH) : Vector{}, second);
            for (int i = 0; i < THIRDS; ++i) {
                const Ints pairs = Ints(Naturals(first[i]) >> 16) | second[i];
                std::memcpy(to + i * DEPTHS * WIDTH + k * WIDTH + 2 * half, &pairs, sizeof pairs);
            }
        }
}

// A panel of floats and its thirds: [step][third][DEPTHS / 2][WIDTH][2]. They are made a step before they are needed, so
// that the processor makes them while tiles are multiplied.
struct CutPanel {
    const float* from;
    int depth;
    bfloat16* thirds;

    void cut(int step) const {
        const int count = std::min(DEPTHS, depth - step * DEPTHS);
        if (count > 0) cut_step(from + size_t(step) * DEPTHS * WIDTH, count, thirds + size_t(step) * STEP_SIZE);
    }
};

// The sums of 16 * TILES rows by a panel. Rows are [step][third][BLOCK][DEPTHS]. `begin(step)` and
// fetch() are called in each step.
template <int TILES, class Begin, class Fetch>
inline void sum_thirds(const bfloat16* rows, const bfloat16* panel, int steps, Vector (*sums)[2],
                       const Begin& begin, Fetch& fetch) {
    constexpr int NUMBERS = DEPTHS * BLOCK, ROW = DEPTHS * sizeof(bfloat16), LINE = 2 * WIDTH * sizeof(bfloat16);
    settle();
    for_tiles<2 * TILES>([](auto T) { clear_tile<T>(); });
    for (int step = 0; step < steps; ++step, rows += STEP_SIZE, panel += STEP_SIZE) {
        begin(step);
        settle();
        for_tiles<PRODUCTS>([&](auto I) {
            if constexpr (!I || OF_ROWS[I] != OF_ROWS[I - 1]) {
                load_tile<4>(rows + OF_ROWS[I] * NUMBERS, ROW);
                if constexpr (TILES == 2) load_tile<5>(rows + OF_ROWS[I] * NUMBERS + NUMBERS / 2, ROW);
            }
            if constexpr (!I || OF_PANEL[I] != OF_PANEL[I - 1]) {
                load_tile<6>(panel + OF_PANEL[I] * NUMBERS, LINE);
                load_tile<7>(panel + OF_PANEL[I] * NUMBERS + WIDTH, LINE);
            }
            multiply_tiles<0, 4, 6>();
            multiply_tiles<1, 4, 7>();
            if constexpr (TILES == 2) {
                multiply_tiles<2, 5, 6>();
                multiply_tiles<3, 5, 7>();
            }
            fetch();
        });
    }
    for_tiles<2 * TILES>([&](auto T) { store_tile<T>(&sums[T / 2 * 16][T % 2], sizeof *sums); });
}

// Multiplies `count` rows, up to BLOCK, by a panel whose thirds are made if it is `first`; calls finish(row, sums).
template <class Fetch, class Use>
inline void multiply_block(const bfloat16* rows, int count, const CutPanel& panel, bool first, Fetch& fetch,
                           const Use& finish) {
    Vector sums[BLOCK][2];
    const int steps = whole_steps(panel.depth) / DEPTHS;
    const auto by = [&](const auto& begin) {
        if (count > LANES)
            sum_thirds<2>(rows, panel.thirds, steps, sums, begin, fetch);
        else
            sum_thirds<1>(rows, panel.thirds, steps, sums, begin, fetch);
    };
    if (first) {
        panel.cut(0);
        by([&](int step) { panel.cut(step + 1); });
    } else {
        by(Nothing());
    }
    finish_block(sums, count, finish);
}

#endif
