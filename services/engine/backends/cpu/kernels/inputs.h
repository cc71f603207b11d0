// The input rows of a product, as it reads them: floats in tiles, or bfloat16 row after row.
#pragma once

#include <climits>

#include "parts.h"
#include "powers.h"
#include "thirds.h"

// The height of a batch's slices in units of rows: the least and the most.
struct Heights {
    int unit, low, high;
};

// Floats, [tile][depth][height].
class TiledInput {
public:
    static constexpr Heights SLICES{ROWS, 4, 6};

    TiledInput(float* memory, int depth, const Tiles& tiles) : to_(memory), depth_(depth), tiles_(tiles) {}
    TiledInput(Numbers& memory, int depth, const Tiles& tiles) : TiledInput(memory.data(), depth, tiles) {}

    static size_t floats(int rows, int depth) { return Tiles(rows).size(depth); }

    // Sets numbers [at, at + n) of all rows of the tile that begins with `row`. Overwrites the vectors, one for each
    // row.
    void set(int row, int, int at, Vector (&rows)[LANES], int n) const {
        store_transposed(place(row, at), rows, tiles_.height, n);
    }

    void set(int row, int at, float x) const { *place(row, at) = x; }

    // As exact as float32.
    static Vector silu(Vector x) { return ::silu(x); }
    static Vector gelu(Vector x) { return ::gelu(x); }

    // How many rows from this one on are neighbours.
    int neighbours(int row) const { return tiles_.height - row % tiles_.height; }

    // Copies `dim` numbers for each of `count` neighbours to `at`; in `from` the rows are `step` apart.
    void copy(int row, int count, int at, const float* from, size_t step, int dim) const {
        float* to = place(row, at);
        if (count == 1) {
            for (int d = 0; d < dim; ++d) to[size_t(d) * tiles_.height] = from[d];
            return;
        }
        for (int d = 0; d < dim; d += LANES) {
            Vector square[LANES] = {};
            for (int r = 0; r < count; ++r) square[r] = load(from + r * step + d);
            transpose(square);
            for (int k = 0; k < std::min(LANES, dim - d); ++k) store_some(to + size_t(d + k) * tiles_.height, square[k], count);
        }
    }

    // The numbers of rows of one tile: those of a depth are neighbours, and the next depth is `along` further.
    const float* tile(int row, int, int& along) const {
        along = tiles_.height;
        return place(row, 0);
    }

    // Prefetches, for writing, `numbers` of a tile's rows from `at` on.
    void expect(int row, int at, int numbers) const {
        const float* to = place(row, at);
        for (int i = 0; i < numbers * tiles_.height; i += 16) prefetch<1>(to + i);
    }

    template <class Crew>
    void multiply(Crew& crew, const Matrix& matrix, const Finish& finish) const {
        ::multiply(crew, matrix, to_, tiles_, finish);
    }

private:
    float* place(int row, int at) const { return to_ + tiles_.at(row, at, depth_); }

    float* to_;
    int depth_;
    const Tiles& tiles_;
};

#if defined(HAS_UNITS)

// What inputs of tiles have in common: Own::put(row, at, v, n) writes n numbers of a row.
template <class Own>
class RowInput {
public:
    static constexpr Heights SLICES{BLOCK, 4, 6};

    void set(int row, int count, int at, const Vector (&rows)[LANES], int n) const {
#pragma GCC unroll 4
        for (int r = 0; r < count; ++r) own().put(row + r, at, rows[r], n);
    }

    void set(int row, int at, float x) const { own().put(row, at, broadcast(x), 1); }

    int neighbours(int) const { return INT_MAX; }

    void copy(int row, int count, int at, const float* from, size_t step, int dim) const {
        for (int r = 0; r < count; ++r, from += step)
            for (int d = 0; d < dim; d += LANES) own().put(row + r, at + d, load(from + d), std::min(LANES, dim - d));
    }

    void expect(int, int, int) const {}

private:
    const Own& own() const { return static_cast<const Own&>(*this); }
};

// bfloat16, each row filled up with zeros to whole steps.
//
// A product reads the same depth of all rows of a block. If these were a multiple of 4096 bytes apart, which is so for
// many models, they would share one set of the first-level cache, which cannot hold so many. So such rows are a cache
// line further apart.
class Bfloat16Input : public RowInput<Bfloat16Input> {
public:
    Bfloat16Input(float* memory, int depth, const Tiles& tiles)
        : to_(reinterpret_cast<bfloat16*>(memory)), depth_(depth), stride_(apart(depth)), rows_(tiles.count) {}
    Bfloat16Input(Numbers& memory, int depth, const Tiles& tiles) : Bfloat16Input(memory.data(), depth, tiles) {}

    static size_t floats(int rows, int depth) { return size_t(rows + BLOCK - 1) / BLOCK * BLOCK * apart(depth) / 2; }

    static Vector silu(Vector x) { return fast_silu(x); }
    static Vector gelu(Vector x) { return fast_gelu(x); }

    // See TiledInput. Valid until this thread's next call.
    const float* tile(int row, int count, int& along) const {
        thread_local Numbers memory;
        if (memory.size() < size_t(depth_) * count) memory.resize(size_t(depth_) * count);
        for (int r = 0; r < count; ++r)
            for (int k = 0; k < depth_; ++k) memory[size_t(k) * count + r] = to_float(to_[size_t(row + r) * stride_ + k]);
        along = count;
        return memory.data();
    }

    template <class Crew>
    void multiply(Crew& crew, const Matrix& matrix, const Finish& finish) const {
        const int blocks = (rows_ + BLOCK - 1) / BLOCK;
        const bool grouped = matrix.kind == WeightKind::GROUPS_DOTS;
        if (grouped && are_few(matrix.groups, rows_)) {
            constexpr int TOGETHER = 16;  // panels for which a thread prepares rows once
            return share_out(crew, matrix, 1, 0, rows_ > 1 ? TOGETHER : 4, [&](int, int, int begin, int end) {
                multiply_few({to_, size_t(stride_)}, rows_, matrix, begin, end, finish);
            });
        }
#if defined(__AMX_BF16__)
        if (grouped || blocks > 1) {
            const BlockShare share{matrix, {to_, size_t(stride_)}, rows_, finish};
            return share_out(crew, matrix, blocks, share.bytes(), 4, [&](auto... range) { share.run(range...); });
        }
#endif
        const int depth = whole_steps(depth_);
        const size_t size = size_t(depth) * WIDTH;  // of a panel
        share_out(crew, matrix, blocks, BLOCK * stride_ * sizeof(bfloat16), 4, [&](int first, int last, int begin, int end) {
            for (int panel = begin; panel < end; ++panel) {
                const Dotted* weights = grouped ? widened(matrix.groups, matrix.groups_of(panel))
                                                : static_cast<const Dotted*>(matrix.panels) + panel * size;
                const size_t later = last - first == 1 ? STEPS_AHEAD * DEPTHS * WIDTH : size;
                PanelPrefetch ahead(weights + later, grouped ? 0 : size * sizeof(Dotted), last - first);
                for (int block = first; block < last; ++block) {
                    const int row = block * BLOCK;
                    multiply_block({to_ + size_t(row) * stride_, size_t(stride_)}, std::min(BLOCK, rows_ - row), weights,
                                   depth, ahead, [&](int r, Sums sums) { finish(panel, row + r, sums); });
                }
            }
        });
    }

private:
    friend RowInput;

    // How far apart rows are.
    static int apart(int depth) {
        constexpr int FEW_SETS = 1024 / sizeof(bfloat16);  // rows that are multiples of it apart use four sets at most
        return whole_steps(depth) + (whole_steps(depth) % FEW_SETS ? 0 : DEPTHS);
    }

    // A single block prefetches what it reads so many steps later, also past the end of its panel. Each of several
    // prefetches its share of the next panel.
    static constexpr int STEPS_AHEAD = 4;

    void put(int row, int at, Vector v, int n) const {
        bfloat16* to = to_ + size_t(row) * stride_;
        store_some(to + at, v, n);
        if (at + n == depth_) std::fill(to + depth_, to + whole_steps(depth_), bfloat16{0});
    }

    bfloat16* to_;
    int depth_, stride_, rows_;
};

#endif

#if defined(__AMX_BF16__)

// Thirds of floats, [block][step][third][BLOCK][DEPTHS], the last step filled up with zeros.
class ThirdsInput : public RowInput<ThirdsInput> {
public:
    ThirdsInput(float* memory, int depth, const Tiles& tiles)
        : to_(reinterpret_cast<bfloat16*>(memory)), depth_(depth), rows_(tiles.count) {}
    ThirdsInput(Numbers& memory, int depth, const Tiles& tiles) : ThirdsInput(memory.data(), depth, tiles) {}

    static size_t floats(int rows, int depth) { return size_t(rows + BLOCK - 1) / BLOCK * of_block(depth) / 2; }

    static Vector silu(Vector x) { return ::silu(x); }
    static Vector gelu(Vector x) { return ::gelu(x); }

    // See TiledInput. Valid until this thread's next call.
    const float* tile(int row, int count, int& along) const {
        thread_local Numbers memory;
        if (memory.size() < size_t(depth_) * count) memory.resize(size_t(depth_) * count);
        for (int r = 0; r < count; ++r)
            for (int k = 0; k < depth_; ++k) {
                const bfloat16* third = place(row + r, k);
                float& sum = memory[size_t(k) * count + r] = 0;
                for (int i = THIRDS; i--;) sum += to_float(third[i * BLOCK * DEPTHS]);
            }
        along = count;
        return memory.data();
    }

    template <class Crew>
    void multiply(Crew& crew, const Matrix& matrix, const Finish& finish) const {
        const int blocks = (rows_ + BLOCK - 1) / BLOCK;
        share_out(crew, matrix, blocks, of_block(depth_) * sizeof(bfloat16), 4, [&](int first, int last, int begin, int end) {
            thread_local Numbers memory;
            if (memory.size() < of_block(depth_) / 2) memory.resize(of_block(depth_) / 2);
            for (int panel = begin; panel < end; ++panel) {
                const float* weights = static_cast<const float*>(matrix.panels) + size_t(panel) * depth_ * WIDTH;
                const CutPanel cut{weights, depth_, reinterpret_cast<bfloat16*>(memory.data())};
                const size_t later = last - first == 1 ? STEPS_AHEAD * DEPTHS : depth_;
                PanelPrefetch ahead(weights + later * WIDTH, depth_ * WIDTH * sizeof(float), last - first, LINES);
                for (int block = first; block < last; ++block) {
                    const int row = block * BLOCK, count = std::min(BLOCK, rows_ - row);
                    finish.expect(panel, row, count);
                    multiply_block(to_ + block * of_block(depth_), count, cut, block == first, ahead,
                                   [&](int r, Sums sums) { finish(panel, row + r, sums); });
                }
            }
        });
    }

private:
    friend RowInput;

    static size_t of_block(int depth) { return size_t(whole_steps(depth)) * THIRDS * BLOCK; }

    static constexpr int STEPS_AHEAD = 4;  // see Bfloat16Input
    static constexpr int LINES = (DEPTHS * WIDTH * sizeof(float) / 64 + PRODUCTS - 1) / PRODUCTS;  // of a fetch

    bfloat16* place(int row, int at) const {
        const size_t block = row / BLOCK * of_block(depth_), step = size_t(at / DEPTHS) * STEP_SIZE;
        return to_ + block + step + row % BLOCK * DEPTHS + at % DEPTHS;
    }

    // Numbers that would reach into the next step are put one by one.
    void put(int row, int at, Vector v, int n) const {
        if (at % LANES && n > 1) {
            for (int i = 0; i < n; ++i) put(row, at + i, broadcast(v[i]), 1);
            return;
        }
        Ints thirds[THIRDS];
        cut(v, thirds);
        bfloat16* to = place(row, at);
        for (int i = 0; i < THIRDS; ++i) store_some(to + i * BLOCK * DEPTHS, same_bits<Vector>(thirds[i]), n);
        if (at + n < depth_) return;
        for (int k = depth_; k < whole_steps(depth_); ++k)
            for (int i = 0; i < THIRDS; ++i) place(row, k)[i * BLOCK * DEPTHS] = bfloat16{0};
    }

    bfloat16* to_;
    int depth_, rows_;
};

#endif
