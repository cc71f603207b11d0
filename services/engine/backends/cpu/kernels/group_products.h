// Products by weights in groups, which are widened before they are multiplied: the sums are those of the widened weights.
#pragma once

#include "columns.h"

// sums[R][2] of R rows of a tile by a panel whose weights stay in registers.
//
// Not inlined, see sum_products.
template <int R, int BITS, Coding CODING>
__attribute__((noinline)) void sum_groups(Vector (&sums)[R][2], const float* rows, const Matrix& matrix, int panel) {
    Vector own[R][2] = {};
    each_half<BITS, CODING>(matrix.groups, matrix.groups_of(panel),
                            [&](int half, Vector weights) __attribute__((always_inline)) {
#pragma GCC unroll 16
                                for (int r = 0; r < R; ++r) own[r][half] += broadcast(rows[r]) * weights;
                                if (half) rows += R;
                            });
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) sums[r][half] = own[r][half];
}

// The sums of tiles [first, last) by a panel, which grow with each part of it.
class PartialSums {
public:
    PartialSums(int first, int last) : first_(first) {
        thread_local Numbers memory;
        const size_t size = size_t(last - first) * ROWS * WIDTH;
        if (memory.size() < size) memory.resize(size);
        memory_ = memory.data();
    }

    // Those of R rows; zeros if they are `fresh`.
    template <int R>
    Vector (&of(int tile, bool fresh) const)[R][2] {
        float* own = memory_ + size_t(tile - first_) * ROWS * WIDTH;
        if (fresh) std::fill_n(own, R * WIDTH, 0.0f);
        return *reinterpret_cast<Vector(*)[R][2]>(own);
    }

private:
    const int first_;
    float* memory_;
};

// One thread's share of a product by float32 rows; see Share.
class GroupShare {
public:
    GroupShare(const Matrix& matrix, const float* packed, const Tiles& tiles, const Finish& finish)
        : matrix_(matrix), packed_(packed), tiles_(tiles), finish_(finish) {}

    // Tiles [first, last) by panels [begin, end). A part of a panel at a time is widened for all tiles, and multiplied
    // while it is in the first-level cache.
    void run(int first, int last, int begin, int end) const {
        if (tiles_.count <= IN_REGISTERS) {
            for (int panel = begin; panel < end; ++panel) multiply_few(panel);
            return;
        }
        const Groups& groups = matrix_.groups;
        const int all = matrix_.inputs / groups.size, part = std::clamp(PART / groups.size, 1, all);
        thread_local Numbers memory;
        const size_t size = size_t(part) * groups.size * WIDTH;
        if (memory.size() < size) memory.resize(size);
        const PartialSums sums(first, last);
        for (int panel = begin; panel < end; ++panel)
            for (int group = 0; group < all; group += part) {
                const int count = std::min(part, all - group);
                widen(matrix_.groups_of(panel, group, count), memory.data());
                const Run<float, 2> run{{memory.data(), memory.data() + LANES}, count * groups.size};
                for (int tile = first; tile < last; ++tile) multiply(tile, panel, group * groups.size, run, sums);
            }
    }

private:
    static constexpr int PART = 128;  // depths of a panel, which as floats fit in a first-level cache beside rows
    static constexpr int IN_REGISTERS = FEW;

    void multiply_few(int panel) const {
        finish_.expect(panel, 0, tiles_.count);
        with_codes(matrix_.groups, [&]<int BITS, Coding CODING>() {
            with_rows<IN_REGISTERS>(tiles_.count, [&](auto R) {
                Vector sums[R][2];
                sum_groups<R, BITS, CODING>(sums, packed_, matrix_, panel);
                finish_(panel, 0, sums);
            });
        });
    }

    void widen(const GroupRange& range, float* wide) const {
        with_codes(matrix_.groups,
                   [&]<int BITS, Coding CODING>() { widen_groups<BITS, CODING>(matrix_.groups, range, wide); });
    }

    void multiply(int tile, int panel, int depth, const Run<float, 2>& run, const PartialSums& sums) const {
        const int row = tile * tiles_.height, rows = tiles_.rows_of(tile);
        const bool done = depth + run.count == matrix_.inputs;
        if (done) finish_.expect(panel, row, rows);
        with_rows(rows, [&](auto R) {
            auto& own = sums.template of<R>(tile, depth == 0);
            const float* numbers = packed_ + tiles_.at(row, depth, matrix_.inputs);
            sum_products<R, 2, 1, false>(own, numbers, tiles_.height, &run, 1, WIDTH);
            if (done) finish_(panel, row, own);
        });
    }

    const Matrix& matrix_;
    const float* packed_;
    const Tiles& tiles_;
    const Finish& finish_;
};

#if defined(HAS_UNITS)

// The weights of `range` in a panel, widened to bfloat16 and filled up with zeros to whole steps; valid until this thread's
// next call.
inline const Dotted* widened(const Groups& groups, const GroupRange& range) {
    thread_local Numbers memory;
    const size_t inputs = size_t(range.count) * groups.size, depth = whole_steps(int(inputs));
    const size_t size = depth * WIDTH / 2;  // two bfloat16 in a float
    if (memory.size() < size) memory.resize(size);
    Dotted* to = reinterpret_cast<Dotted*>(memory.data());
#if defined(__AMX_BF16__)
    if (by_columns(groups.bits)) {
        const int first = range.first * groups.size;
        widen_pairs(groups, {range.panel, range.inputs, first, first + int(inputs)}, to);
        return to;
    }
#endif
    with_codes(groups, [&]<int BITS, Coding CODING>() {
        if constexpr (!by_columns(BITS))
            each_pair<BITS, CODING, false>(groups, range, [&](int k, int half, __m512bh columns) __attribute__((always_inline)) {
                std::memcpy(static_cast<void*>(to + (k + half) * WIDTH), &columns, sizeof columns);
            });
    });
    std::fill(to + inputs * WIDTH, to + depth * WIDTH, Dotted{});
    return to;
}

#endif

// See read_output. A whole panel is widened for it.
inline void read_grouped_output(const Matrix& matrix, int output, float* to) {
    const int panel = output / WIDTH, column = output % WIDTH;
#if defined(HAS_UNITS)
    if (matrix.kind == WeightKind::GROUPS_DOTS) {
        const Dotted* wide = widened(matrix.groups, matrix.groups_of(panel));
        for (int k = 0; k < matrix.inputs; ++k) to[k] = to_float(wide[k / 2 * 2 * WIDTH + 2 * column + k % 2]);
        return;
    }
#endif
    thread_local Numbers memory;
    const size_t size = size_t(matrix.inputs) * WIDTH;
    if (memory.size() < size) memory.resize(size);
    with_codes(matrix.groups, [&]<int BITS, Coding CODING>() {
        widen_groups<BITS, CODING>(matrix.groups, matrix.groups_of(panel), memory.data());
    });
    for (int k = 0; k < matrix.inputs; ++k) to[k] = memory[size_t(k) * WIDTH + column];
}

#if defined(HAS_UNITS) && !defined(__AMX_BF16__)

constexpr int FEW_PAIRS = 12;  // rows for which a panel need not be stored: their sums fit the registers
constexpr int WITH_FACTORS = 11;  // rows whose sums fit beside scales and offsets

// Pairs of numbers of R rows, depth after depth. Four rows share an address, because an address for each would leave no
// registers for others.
template <int R>
class RowPairs {
public:
    explicit RowPairs(const Bfloat16Rows& rows) : step_(rows.stride * sizeof(bfloat16)), three_(3 * step_) {
        for (int i = 0; i < ADDRESSES; ++i) first_[i] = reinterpret_cast<const char*>(rows.first) + 4 * i * step_;
    }

    // Calls use(row, pair) for each row.
    template <class Use>
    __attribute__((always_inline)) void each(const Use& use) {
        asm("" : "+r"(step_), "+r"(three_));        // or the compiler computes all addresses before the loop
        if (R > LOADED) asm volatile("" ::: "memory");  // or it keeps the pairs for the other half of a panel
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            int32_t pair;
            std::memcpy(&pair, first_[r / 4] + (r % 4 == 3 ? three_ : r % 4 * step_), sizeof pair);
            use(r, same_bits<__m512bh>(_mm512_set1_epi32(pair)));
        }
    }

    __attribute__((always_inline)) void next() {
#pragma GCC unroll 4
        for (const char*& first : first_) first += 2 * sizeof(bfloat16);
    }

private:
    static constexpr int LOADED = 4;  // rows whose pairs stay in registers
    static constexpr int ADDRESSES = (R + 3) / 4;
    const char* first_[ADDRESSES];
    size_t step_, three_;  // bytes
};

// sums[R][2] of R rows by a panel, in the order of sum_pairs.
//
// Not inlined, see sum_products.
template <int R, int BITS, Coding CODING>
__attribute__((noinline)) void sum_groups(Vector (&sums)[R][2], const Bfloat16Rows& rows, const Matrix& matrix, int panel) {
    __m512 own[R][2] = {};
    RowPairs<R> pairs(rows);
    each_pair<BITS, CODING, (R > WITH_FACTORS)>(
        matrix.groups, matrix.groups_of(panel),
        [&](int, int half, __m512bh columns) __attribute__((always_inline)) {
            pairs.each([&](int r, __m512bh x) __attribute__((always_inline)) {
                own[r][half] = _mm512_dpbf16_ps(own[r][half], x, columns);
            });
            if (half) pairs.next();
        });
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) sums[r][half] = Vector(own[r][half]);
}

inline bool are_few(const Groups&, int rows) { return rows <= FEW_PAIRS; }

// Multiplies rows that are few by panels [begin, end).
inline void multiply_few(const Bfloat16Rows& rows, int count, const Matrix& matrix, int begin, int end, const Finish& finish) {
    with_codes(matrix.groups, [&]<int BITS, Coding CODING>() {
        with_rows<FEW_PAIRS>(count, [&](auto R) {
            for (int panel = begin; panel < end; ++panel) {
                Vector sums[R][2];
                sum_groups<R, BITS, CODING>(sums, rows, matrix, panel);
                finish(panel, 0, sums);
            }
        });
    });
}

#endif
