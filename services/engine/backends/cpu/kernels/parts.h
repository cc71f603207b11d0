// Products of several blocks of bfloat16 rows on AMX, a part of the depth at a time. The sums of a part are where those of
// the next one begin, so they are bitwise those of the whole depth.
#pragma once

#include "group_products.h"

#if defined(__AMX_BF16__)

// One thread's share of a product; see Share.
//
// A part of a panel stays in the first-level cache while all blocks are multiplied by it, and is widened there if it is
// stored as codes. A chunk of the depth of all rows stays in the second-level cache while panels are multiplied by it.
struct BlockShare {
    const Matrix& matrix;
    const Bfloat16Rows rows;
    const int count;  // rows
    const Finish& finish;

    // Of a block in the second-level cache: so few that MANY blocks are multiplied by a panel while it is there.
    size_t bytes() const { return std::min(depth() * BLOCK * sizeof(bfloat16), SECOND_CACHE / MANY); }

    // Blocks [first, last) by panels [begin, end).
    void run(int first, int last, int begin, int end) const {
        for (; begin < end; begin += TOGETHER) multiply(first, last, begin, std::min(begin + TOGETHER, end));
    }

private:
    static constexpr int DEEP = 256;   // depths of a part
    static constexpr int CODED = 128;  // those of codes, which are the inputs of whole groups
    static constexpr int MANY = 8;
    static constexpr int CHUNK = 768 << 10;  // bytes of a chunk at most
    static constexpr int TOGETHER = 64;      // panels whose sums wait for their next chunk

    int depth() const { return whole_steps(matrix.inputs); }
    bool grouped() const { return matrix.kind == WeightKind::GROUPS_DOTS; }
    int part() const {
        const int size = matrix.groups.size;
        return !grouped() ? DEEP : CODED % size == 0 ? CODED : size % DEPTHS == 0 ? size : depth();
    }

    // Depths of a chunk of so many blocks: whole parts, nearly as many in each chunk.
    int chunk(int blocks) const {
        const int most = CHUNK / int(blocks * BLOCK * sizeof(bfloat16));
        const int chunks = (depth() + most - 1) / most, parts = (depth() + part() - 1) / part();
        return (parts + chunks - 1) / chunks * part();
    }

    const Dotted* panel_at(int panel, int at) const {
        return static_cast<const Dotted*>(matrix.panels) + (size_t(panel) * depth() + at) * WIDTH;
    }

    void multiply(int first, int last, int begin, int end) const {
        const int blocks = last - first, depth = this->depth(), part = this->part(), chunk = this->chunk(blocks);
        const bool waits = chunk < depth;
        thread_local Numbers memory;
        const size_t rows = size_t(blocks) * BLOCK, size = rows * WIDTH * (waits ? end - begin : 1);
        if (memory.size() < size) memory.resize(size);
        for (int at = 0; at < depth; at += chunk)
            for (int panel = begin; panel < end; ++panel) {
                auto sums = reinterpret_cast<Vector(*)[2]>(memory.data()) + (waits ? rows * (panel - begin) : 0);
                const int until = std::min(at + chunk, depth);
                const bool more = panel + 1 < end;
                const Dotted* next = panel_at(more ? panel + 1 : until < depth ? begin : end, more ? at : until % depth);
                PanelPrefetch ahead(next, grouped() ? 0 : (until - at) * WIDTH * sizeof(Dotted), blocks);
                for (int from = at; from < until; from += part)
                    add_part(panel, from, std::min(part, until - from), first, last, sums, ahead);
                if (until < depth) continue;
                for (int block = first; block < last; ++block, sums += BLOCK)
                    finish_block(sums, rows_of(block), [&](int r, Sums some) { finish(panel, block * BLOCK + r, some); });
            }
    }

    int rows_of(int block) const { return std::min(BLOCK, count - block * BLOCK); }

    void add_part(int panel, int from, int depths, int first, int last, Vector (*sums)[2], PanelPrefetch& ahead) const {
        const Dotted* weights = grouped() ? widened_part(panel, from, depths) : panel_at(panel, from);
        for (int block = first; block < last; ++block, sums += BLOCK) {
            const Bfloat16Rows own{rows.first + size_t(block) * BLOCK * rows.stride + from, rows.stride};
            if (from == 0)
                sum_block<true>(own, rows_of(block), weights, depths, sums, ahead);
            else
                sum_block<false>(own, rows_of(block), weights, depths, sums, ahead);
        }
    }

    const Dotted* widened_part(int panel, int from, int depths) const {
        const int size = matrix.groups.size;
        return widened(matrix.groups, matrix.groups_of(panel, from / size, std::min(depths, matrix.inputs - from) / size));
    }
};

#endif
