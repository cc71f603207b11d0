// Adapters (LoRA): what is added to the products of some rows. Rows of one adapter are neighbours in a batch.
//
// All of it is float32. A row's sums run over the inputs, and then over the ranks, in one order, and depend on the row
// and its adapter alone.
#pragma once

#include "inputs.h"
#include "slices.h"

// What an adapter adds to a product of x: b (scales * (a x)), with the ranks in strips of LANES.
struct LowRank {
    const float* a;         // [strips][inputs][LANES], filled up with zeros
    const float* scales;    // [strips * LANES]
    const float* b;         // [LANES] for each rank of each half of a panel
    const int32_t* halves;  // for each half of a panel: its first rank, the end of its ranks, where it begins in `b`
    int32_t strips;         // 0: nothing is added
};

// A layer's products that adapters change.
enum Changed { CHANGED_QKV, CHANGED_OUTPUT, CHANGED_UP, CHANGED_DOWN, CHANGED };

// sums[R] of R rows by a strip. Not inlined, see sum_products.
template <int R>
__attribute__((noinline)) void sum_strip(Vector (&sums)[R], const float* rows, int along, const float* strip, int depth) {
    Vector own[R] = {};
    for (int k = 0; k < depth; ++k, rows += along, strip += LANES) {
        const Vector columns = load(strip);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) own[r] += broadcast(rows[r]) * columns;
    }
    std::copy_n(own, R, sums);
}

// What adapters add to the sums of a product. Default: nothing.
class Added {
public:
    Added() = default;

    // Multiplies rows [slice, depth] by `a` of their adapters. `low` has room for all strips of each row.
    template <class Input, class Crew>
    Added(Crew& crew, const Slice& slice, int product, const Input& rows, int depth, int strips, float* low)
        : slice_(&slice), product_(product), width_(strips * LANES), low_(low) {
        crew.each(int(slice.adapted.size()) * strips, [&](int item) {
            const AdaptedRows& run = slice.adapted[item / strips];
            const LowRank& own = run.products[product];
            const int strip = item % strips;
            if (strip >= own.strips) return;
            const Vector scales = load(own.scales + strip * LANES);
            with_rows(run.count, [&](auto R) {
                Vector sums[R];
                int along;
                const float* from = rows.tile(run.first, R, along);
                sum_strip<R>(sums, from, along, own.a + size_t(strip) * depth * LANES, depth);
                for (int r = 0; r < R; ++r) store(row(run.first + r) + strip * LANES, sums[r] * scales);
            });
        });
    }

    // Adds to the sums of rows from `first` on in a panel.
    void operator()(int panel, int first, Sums sums) const {
        if (!slice_) return;
        const auto& owners = slice_->owners_adapted;
        const int count = int(sums.size());
        for (int r = 0; r < count;) {
            const int own = owners[first + r];
            int end = r + 1;
            while (end < count && owners[first + end] == own) ++end;
            if (own >= 0) add(slice_->adapted[own].products[product_], panel, first, r, end, sums);
            r = end;
        }
    }

private:
    float* row(int row) const { return low_ + size_t(row) * width_; }

    void add(const LowRank& own, int panel, int first, int r, int end, Sums sums) const {
        if (!own.strips) return;
        for (int half = 0; half < 2; ++half) {
            const int32_t* at = own.halves + 3 * (2 * panel + half);
            for (int begin = r; begin < end; begin += AT_ONCE)
                with_rows<AT_ONCE>(std::min(AT_ONCE, end - begin), [&](auto N) {
                    Vector all[N] = {};
                    const float* columns = own.b + size_t(at[2]) * LANES;
                    for (int k = at[0]; k < at[1]; ++k, columns += LANES) {
                        const Vector v = load(columns);
                        for (int n = 0; n < N; ++n) all[n] += broadcast(row(first + begin + n)[k]) * v;
                    }
                    for (int n = 0; n < N; ++n) sums[begin + n][half] += all[n];
                });
        }
    }

    static constexpr int AT_ONCE = std::min(4, ROWS);  // rows

    const Slice* slice_ = nullptr;
    int product_ = 0, width_ = 0;
    float* low_ = nullptr;
};
