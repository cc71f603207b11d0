// Four-bit codes on AMX. A group's column has only 16 different weights: they are computed once, and codes look them up. So
// codes are widened column by column, to tiles of weights whose rows are columns of a panel. Few rows of inputs are
// multiplied by such tiles with the sides exchanged: weights on the left, inputs on the right. A tile adds the same products
// in the same order either way, so the sums are bitwise the same.
#pragma once

#include <cassert>

#include "dots.h"

#if defined(__AMX_BF16__)

// Depths of a panel in whole blocks, not necessarily whole groups.
struct DepthRange {
    const uint8_t* panel;
    int inputs, first, end;  // inputs of the panel
};

// The scales and offsets of a group's columns.
struct ColumnFactors {
    alignas(64) float scales[WIDTH], offsets[WIDTH];

    template <Coding CODING>
    void load(const Groups& groups, const uint8_t* from, const uint8_t* super) {
        for (int lane = 0; lane < WIDTH; lane += LANES) {
            store(scales + lane, load_factors(groups, from, super, lane));
            if (CODING == Coding::OFFSET)
                store(offsets + lane, load_factors(groups, from + WIDTH * groups.number(), super + WIDTH * 2, lane));
        }
    }

    // The weights that `numbers` stand for in a column, and those in the next one.
    template <Coding CODING>
    __attribute__((always_inline)) __m512i rounded(int column, Vector numbers) const {
        return __m512i(_mm512_cvtne2ps_pbh(weights<CODING>(column + 1, numbers), weights<CODING>(column, numbers)));
    }

private:
    template <Coding CODING>
    __attribute__((always_inline)) __m512 weights(int column, Vector numbers) const {
        const Vector scaled = broadcast(scales[column]) * numbers;
        return __m512(CODING == Coding::OFFSET ? scaled + broadcast(offsets[column]) : scaled);
    }
};

// For the 16 codes of two neighbouring columns, the bfloat16 that they stand for.
struct TwoColumns {
    __m512i table;

    // The numbers of 32 indices, whose lowest four bits are codes of the first column, or with 16 in `second` of the other one.
    __m512i operator()(__m512i indices, __m512i second) const {
        constexpr int AND_OR = 0xEA;
        return _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(indices, _mm512_set1_epi16(15), second, AND_OR), table);
    }
};

// 32 bytes, and 32 others behind them.
inline __m512i joined(const uint8_t* low, const uint8_t* high) {
    const __m256i from = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low));
    return _mm512_inserti64x4(_mm512_castsi256_si512(from), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)), 1);
}

constexpr int CODED_BLOCK = WIDTH * STEP / 2;  // bytes of a block of four-bit codes

// Writes a step of eight columns, [8][DEPTHS], from two blocks of codes.
inline void widen_step(const TwoColumns (&columns)[4], const uint8_t* codes, bfloat16* to) {
    const __m512i zero = _mm512_setzero_si512(), sixteen = _mm512_set1_epi16(16);
    const __m512i first = joined(codes, codes + CODED_BLOCK), second = joined(codes + 32, codes + 32 + CODED_BLOCK);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i, to += 2 * DEPTHS) {
        _mm512_store_si512(to, columns[i](_mm512_srli_epi16(first, 4 * i), zero));
        _mm512_store_si512(to + DEPTHS, columns[i](_mm512_srli_epi16(second, 4 * i), sixteen));
    }
}

// Writes STEP depths of eight columns, which are DEPTHS apart, from a block of codes.
inline void widen_block(const TwoColumns (&columns)[4], const uint8_t* codes, bfloat16* to) {
    const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    const __m512i both = _mm512_loadu_si512(codes);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i, to += 2 * DEPTHS) {
        const __m512i numbers = columns[i](_mm512_srli_epi16(both, 4 * i), second);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(numbers));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + DEPTHS), _mm512_extracti64x4_epi64(numbers, 1));
    }
}

// Writes the weights of a range as bfloat16 [depths / DEPTHS][WIDTH][DEPTHS], the last step filled up with zeros.
template <Coding CODING>
__attribute__((noinline)) void widen_columns(const Groups& groups, const DepthRange& range, bfloat16* to) {
    const auto place = [first = range.first, to](int depth) {
        const unsigned after = depth - first;
        return to + (after / DEPTHS * WIDTH * DEPTHS + after % DEPTHS);
    };
    const Book book(groups.book);
    constexpr float CENTRE = CODING == Coding::CENTRED ? 8 : 0;
    const Vector integers = numbers() - CENTRE;
    const bool whole = groups.size % DEPTHS == 0;  // whether groups are whole steps
    ColumnFactors factors;
    for (int k = range.first, end; k < range.end; k = end) {
        const int group = k / groups.size;
        end = std::min(range.end, (group + 1) * groups.size);
        const uint8_t* from = range.panel + range.inputs / SUPER * groups.super_bytes() + size_t(group) * groups.bytes();
        factors.load<CODING>(groups, from, range.panel + k / SUPER * groups.super_bytes());
        for (int byte = 0; byte < groups.header(); byte += 64) prefetch<0, 2>(from + BYTES_AHEAD + byte);
        from += groups.header() + (k - group * groups.size) * WIDTH / 2;
        for (int column = 0; column < WIDTH; column += 8, from += 64) {
            TwoColumns columns[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i)
                columns[i] = {factors.rounded<CODING>(column + 2 * i, CODING == Coding::BOOK ? book.all : integers)};
            const uint8_t* codes = from;
            for (int depth = k; depth < end; depth += STEP, codes += CODED_BLOCK) {
                prefetch<0, 2>(codes + BYTES_AHEAD);
                if (!whole)
                    widen_block(columns, codes, place(depth) + column * DEPTHS);
                else if (depth % DEPTHS == 0)
                    widen_step(columns, codes, place(depth) + column * DEPTHS);
            }
        }
    }
    if ((range.end - range.first) % DEPTHS == 0) return;
    for (int column = 0; column < WIDTH; ++column) std::fill_n(place(range.end) + column * DEPTHS, STEP, bfloat16{0});
}

// See widen_columns.
inline void widen(const Groups& groups, const DepthRange& range, bfloat16* to) {
    assert(groups.bits == 4);
    if (groups.coding == Coding::OFFSET) widen_columns<Coding::OFFSET>(groups, range, to);
    if (groups.coding == Coding::CENTRED) widen_columns<Coding::CENTRED>(groups, range, to);
    if (groups.coding == Coding::BOOK) widen_columns<Coding::BOOK>(groups, range, to);
}

// Transposes LANES rows of as many pairs; in `from` and `to` rows are so many numbers apart.
//
// Half of the steps are loads of a quarter of a vector each, which leaves the units for shuffles to the other half.
inline void transpose_pairs(const bfloat16* from, size_t from_step, bfloat16* to, size_t to_step) {
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter, to += 4 * to_step) {
        __m512i rows[4];  // rows i, i + 4, i + 8 and i + 12
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const auto load_quarter = [&](int row) {
                return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + row * from_step + quarter * 8));
            };
            rows[i] = _mm512_castsi128_si512(load_quarter(i));
            rows[i] = _mm512_inserti32x4(rows[i], load_quarter(i + 4), 1);
            rows[i] = _mm512_inserti32x4(rows[i], load_quarter(i + 8), 2);
            rows[i] = _mm512_inserti32x4(rows[i], load_quarter(i + 12), 3);
        }
        const __m512i low[] = {_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpacklo_epi32(rows[2], rows[3])};
        const __m512i high[] = {_mm512_unpackhi_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[2], rows[3])};
        _mm512_storeu_si512(to, _mm512_unpacklo_epi64(low[0], low[1]));
        _mm512_storeu_si512(to + to_step, _mm512_unpackhi_epi64(low[0], low[1]));
        _mm512_storeu_si512(to + 2 * to_step, _mm512_unpacklo_epi64(high[0], high[1]));
        _mm512_storeu_si512(to + 3 * to_step, _mm512_unpackhi_epi64(high[0], high[1]));
    }
}

// Writes the weights of a range as pairs of depths [depths / 2][WIDTH][2], the last step filled up with zeros.
inline void widen_pairs(const Groups& groups, const DepthRange& range, Dotted* to) {
    constexpr int PART = 2 * DEPTHS;
    alignas(64) bfloat16 memory[PART * WIDTH];
    for (int k = range.first; k < range.end; k += PART) {
        const int end = std::min(range.end, k + PART);
        widen(groups, {range.panel, range.inputs, k, end}, memory);
        for (int step = 0; step < whole_steps(end - k) / DEPTHS; ++step, to += DEPTHS * WIDTH)
            for (int half = 0; half < 2; ++half)
                transpose_pairs(memory + (step * WIDTH + half * LANES) * DEPTHS, DEPTHS, to + half * LANES * 2, WIDTH * 2);
    }
}

// Up to BLOCK rows as right sides of products: [step][side][DEPTHS / 2][columns] pairs of numbers.
class RightSides {
public:
    const int sides, columns;  // of a side

    RightSides(const Bfloat16Rows& rows, int count, int depth)
        : sides(count > LANES ? 2 : 1), columns((count + sides - 1) / sides), pairs_(reinterpret_cast<const float*>(rows.first)) {
        if (count == 1) return;
        thread_local Numbers memory;
        const size_t size = size_t(depth) / 2 * sides * columns + LANES;
        if (memory.size() < size) memory.resize(size);
        pairs_ = memory.data();
        bfloat16* to = reinterpret_cast<bfloat16*>(memory.data());
        for (int k = 0; k < depth; k += DEPTHS)
            for (int side = 0; side < sides; ++side, to += DEPTHS * columns)  // each line begins in the one before it
                transpose_pairs(rows.first + size_t(side) * columns * rows.stride + k, rows.stride, to, 2 * columns);
    }

    const float* at(int step, int side) const { return pairs_ + (step * sides + side) * LANES * columns; }
    size_t line() const { return columns * sizeof(float); }

private:
    const float* pairs_;
};

// Adds the products of some steps of a panel's columns, [step][WIDTH][DEPTHS], by rows to tiles [side][half].
template <int SIDES>
inline void add_steps(const bfloat16* weights, const RightSides& rows, int first, int end) {
    constexpr size_t LINE = DEPTHS * sizeof(bfloat16);
    for (int step = first; step < end; ++step, weights += WIDTH * DEPTHS) {
        load_tile<5>(rows.at(step, 0), rows.line());
        if constexpr (SIDES == 2) load_tile<7>(rows.at(step, 1), rows.line());
        load_tile<4>(weights, LINE);
        multiply_tiles<0, 4, 5>();
        if constexpr (SIDES == 2) multiply_tiles<2, 4, 7>();
        load_tile<6>(weights + LANES * DEPTHS, LINE);
        multiply_tiles<1, 6, 5>();
        if constexpr (SIDES == 2) multiply_tiles<3, 6, 7>();
    }
}

// sums [SIDES * columns] of rows by a panel. While a part of the depth is widened, tiles multiply the one before it.
template <int SIDES>
inline void sum_few(const RightSides& rows, const Matrix& matrix, int panel, Vector (*sums)[2]) {
    constexpr int PART = 2 * DEPTHS;
    alignas(64) bfloat16 parts[2][PART * WIDTH];
    const uint8_t* from = matrix.groups_of(panel).panel;
    for_tiles<2 * SIDES>([](auto T) { clear_tile<T>(); });
    const auto add = [&](int k) {
        settle();
        const int end = std::min(k + PART, whole_steps(matrix.inputs));
        add_steps<SIDES>(parts[k / PART % 2], rows, k / DEPTHS, end / DEPTHS);
    };
    for (int k = 0; k < matrix.inputs; k += PART) {
        widen(matrix.groups, {from, matrix.inputs, k, std::min(k + PART, matrix.inputs)}, parts[k / PART % 2]);
        if (k) add(k - PART);
    }
    add((matrix.inputs - 1) / PART * PART);
    for_tiles<2 * SIDES>([&](auto T) {
        Vector square[LANES];
        store_tile<T>(square, sizeof *square);
        transpose(square);
        for (int r = 0; r < rows.columns; ++r) sums[T / 2 * rows.columns + r][T % 2] = square[r];
    });
}

inline bool are_few(const Groups& groups, int rows) { return by_columns(groups.bits) && rows <= BLOCK; }

// Multiplies rows that are few by panels [begin, end).
inline void multiply_few(const Bfloat16Rows& rows, int count, const Matrix& matrix, int begin, int end, const Finish& finish) {
    const RightSides sides(rows, count, whole_steps(matrix.inputs));
    const ShapedTiles tiles(Shapes::with_columns(sides.columns));
    for (int panel = begin; panel < end; ++panel) {
        Vector sums[BLOCK + 1][2];
        if (sides.sides == 2)
            sum_few<2>(sides, matrix, panel, sums);
        else
            sum_few<1>(sides, matrix, panel, sums);
        finish_block(sums, count, [&](int row, Sums some) { finish(panel, row, some); });
    }
}

#endif
