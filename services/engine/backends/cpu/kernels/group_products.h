// Products by weights in groups, which are widened before they are multiplied: the sums are those of the widened weights.
#pragma once

#include "dots.h"

// One thread's share of a product by float32 rows; see Share.
template <class Finish, class Expect>
class GroupShare {
public:
    GroupShare(const Matrix& matrix, const float* packed, const Tiles& tiles, const Finish& finish, const Expect& expect)
        : matrix_(matrix), packed_(packed), tiles_(tiles), finish_(finish), expect_(expect) {}

    // Tiles [first, last) by panels [begin, end). A panel is widened once for all tiles; for one tile, a piece at a time,
    // which is still in the first-level cache when it is multiplied.
    void run(int first, int last, int begin, int end) const {
        const Groups& groups = matrix_.groups;
        const int all = matrix_.inputs / groups.size;
        const int piece = last - first == 1 ? std::clamp(PIECE / groups.size, 1, all) : all;
        thread_local Numbers memory;
        const size_t size = size_t(piece) * groups.size * WIDTH;
        if (memory.size() < size) memory.resize(size);
        float* wide = memory.data();
        for (int panel = begin; panel < end; ++panel) {
            const uint8_t* from = matrix_.grouped_panel(panel);
            if (piece == all) widen(from, all, wide);
            for (int tile = first; tile < last; ++tile) multiply(tile, panel, from, piece, wide);
        }
    }

private:
    static constexpr int PIECE = 128;  // depths

    void widen(const uint8_t* from, int count, float* wide) const {
        with_codes(matrix_.groups, [&]<int BITS, bool CENTRED>() {
            widen_groups<BITS, CENTRED>(matrix_.groups, from, count, wide);
        });
    }

    void multiply(int tile, int panel, const uint8_t* from, int piece, float* wide) const {
        const Groups& groups = matrix_.groups;
        const int row = tile * tiles_.height, rows = tiles_.rows_of(tile), all = matrix_.inputs / groups.size;
        expect_(panel, row, rows);
        with_rows(rows, [&](auto R) {
            Vector sums[R][2] = {};
            const float* numbers = packed_ + size_t(tile) * matrix_.inputs * ROWS;
            for (int group = 0; group < all; group += piece) {
                const int count = std::min(piece, all - group);
                if (piece < all) widen(from + size_t(group) * groups.bytes(), count, wide);
                const Run<float, 2> run{{wide, wide + LANES}, count * groups.size};
                sum_products<R, 2, 1, false>(sums, numbers, ROWS, &run, 1, WIDTH);
                numbers += size_t(run.count) * ROWS;
            }
            finish_(panel, row, sums);
        });
    }

    const Matrix& matrix_;
    const float* packed_;
    const Tiles& tiles_;
    const Finish& finish_;
    const Expect& expect_;
};

#if defined(HAS_UNITS)

// A panel's weights, widened to bfloat16 and filled up with zeros to `depth`; valid until this thread's next call.
inline const Dotted* widened(const Matrix& matrix, int panel, int depth) {
    thread_local Numbers memory;
    const size_t size = size_t(depth) * WIDTH / 2;  // two bfloat16 in a float
    if (memory.size() < size) memory.resize(size);
    Dotted* to = reinterpret_cast<Dotted*>(memory.data());
    with_codes(matrix.groups, [&]<int BITS, bool CENTRED>() {
        each_pair<BITS, CENTRED>(matrix.groups, matrix.grouped_panel(panel), matrix.inputs / matrix.groups.size,
                                 [&](int k, const __m512bh(&columns)[2]) __attribute__((always_inline)) {
                                     std::memcpy(static_cast<void*>(to + k * WIDTH), &columns, sizeof columns);
                                 });
    });
    std::fill(to + size_t(matrix.inputs) * WIDTH, to + size_t(depth) * WIDTH, Dotted{});
    return to;
}

#endif

#if defined(HAS_UNITS) && !defined(__AMX_BF16__)
#define WIDENS_IN_REGISTERS

constexpr int FEW_PAIRS = 4;  // rows for which a panel need not be stored: their sums and the scales fit the registers

// sums[R][2] of R rows by a panel, in the order of sum_pairs.
template <int R, int BITS, bool CENTRED>
__attribute__((noinline)) void sum_groups(Vector (&sums)[R][2], const Bfloat16Rows& rows, const Matrix& matrix, int panel) {
    __m512 own[R][2] = {};
    each_pair<BITS, CENTRED>(matrix.groups, matrix.grouped_panel(panel), matrix.inputs / matrix.groups.size,
                             [&](int k, const __m512bh(&columns)[2]) __attribute__((always_inline)) {
#pragma GCC unroll 4
                                 for (int r = 0; r < R; ++r) {
                                     const int32_t pair = load_pair(rows.first + r * rows.stride + k);
                                     const __m512bh x = same_bits<__m512bh>(_mm512_set1_epi32(pair));
                                     own[r][0] = _mm512_dpbf16_ps(own[r][0], x, columns[0]);
                                     own[r][1] = _mm512_dpbf16_ps(own[r][1], x, columns[1]);
                                 }
                             });
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) sums[r][half] = Vector(own[r][half]);
}

// Calls finish(0, sums[rows][2]) for up to FEW_PAIRS rows.
template <class Finish>
inline void multiply_few(const Bfloat16Rows& rows, int count, const Matrix& matrix, int panel, const Finish& finish) {
    with_codes(matrix.groups, [&]<int BITS, bool CENTRED>() {
        with_rows<FEW_PAIRS>(count, [&](auto R) {
            Vector sums[R][2];
            sum_groups<R, BITS, CENTRED>(sums, rows, matrix, panel);
            finish(0, sums);
        });
    });
}

#endif
