// A batch cut into slices: some of its rows, with the work of attention for them.
#pragma once

#include "attention.h"
#include "inputs.h"

struct Slice {
    int first, count;  // rows
    Tiles tiles;
    std::vector<std::vector<Span>> spans;  // for each kind of heads
    bool wanted;  // whether logits are asked for after any of its tokens
    std::vector<AdaptedRows> adapted;     // each in one tile; rows are counted from `first`
    std::vector<int32_t> owners_adapted;  // of each row, which of them; -1: none. Empty: there are none

    // Finds those of the batch.
    void find_adapted(const Batch& batch) {
        for (int i = 0; i < batch.adapted_count; ++i) {
            const AdaptedRows& all = batch.adapted[i];
            const int end = std::min(all.first + all.count - first, count);
            for (int row = std::max(all.first - first, 0), some; row < end; row += some) {
                some = std::min(end - row, tiles.height - row % tiles.height);
                owners_adapted.resize(count, -1);
                std::fill_n(owners_adapted.begin() + row, some, int32_t(adapted.size()));
                adapted.push_back({row, some, all.products});
            }
        }
    }
};

// The request of each token.
inline std::vector<int> owners_of(const Batch& batch) {
    std::vector<int> owners(batch.tokens);
    for (int r = 0; r < batch.requests; ++r)
        for (int token = batch.starts[r]; token < batch.starts[r + 1]; ++token) owners[token] = r;
    return owners;
}

// The tokens [first, end) as spans of up to `most` tokens of one request.
inline std::vector<Span> spans_of(const Batch& batch, const int* owners, int first, int end, int most) {
    std::vector<Span> spans;
    for (int token = first; token < end; token += spans.back().count) {
        const int request = owners[token];
        const int count = std::min({most, end - token, batch.starts[request + 1] - token});
        spans.push_back({request, token - batch.starts[request], count});
    }
    return spans;
}

inline bool any_wanted(const Batch& batch, int first, int end) {
    const auto inside = [&](int32_t at) { return first <= at && at < end; };
    return std::any_of(batch.logits_after, batch.logits_after + batch.wanted, inside);
}

// A slice of the tokens [first, end). `most`: tokens of a span, for each kind of heads.
inline Slice slice_of(const Batch& batch, const int* owners, int first, int end, const std::vector<int>& most) {
    Slice slice{first, end - first, Tiles(end - first), {}, any_wanted(batch, first, end), {}, {}};
    slice.find_adapted(batch);
    for (int tokens : most) slice.spans.push_back(spans_of(batch, owners, first, end, tokens));
    return slice;
}

// One slice if there are so few rows that the threads had better share the weights of each product. Otherwise a slice,
// and what is computed from it, fits into a core's second-level cache; it is high enough that reading all weights for
// it costs little; and each thread has several, so that it hardly waits for others.
// With `whole`, a slice ends with the request whose end is nearest: its tokens need no keys of other slices. As threads
// may take such slices in any order, the longest come first, so that all threads end at about the same time.
inline std::vector<Slice> slices_of(const Batch& batch, const int* owners, int threads, const Heights& heights,
                                    const std::vector<int>& most, bool whole) {
    const int units = (batch.tokens + heights.unit - 1) / heights.unit;
    const int height = std::clamp(units / (3 * threads), heights.low, heights.high);
    const int count = units < heights.low * threads ? 1 : std::max((units + height - 1) / height, 2 * threads);
    const int rows = count == 1 ? batch.tokens : (units + count - 1) / count * heights.unit;
    std::vector<Slice> slices;
    for (int first = 0, end; first < batch.tokens; first = end) {
        end = std::min(batch.tokens, first + rows);
        if (whole) {
            const int32_t begin = batch.starts[owners[end - 1]], after = batch.starts[owners[end - 1] + 1];
            end = begin > first && end - begin < after - end ? begin : after;
        }
        slices.push_back(slice_of(batch, owners, first, end, most));
    }
    const auto longer = [](const Slice& one, const Slice& other) { return one.count > other.count; };
    if (whole) std::stable_sort(slices.begin(), slices.end(), longer);
    return slices;
}
