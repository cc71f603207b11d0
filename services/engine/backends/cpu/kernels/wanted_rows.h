// The rows of a batch that are computed in layers behind the last one that has keys.
#pragma once

#include <algorithm>
#include <vector>

#include "batch.h"

// Some rows of a batch as one of their own: of each request those from the first to the last whose logits are wanted.
struct WantedRows {
    std::vector<int32_t> rows, starts, contexts;
    std::vector<AdaptedRows> adapted;

    explicit WantedRows(const Batch& batch) : starts{0}, contexts(batch.contexts, batch.contexts + batch.requests) {
        for (int r = 0; r < batch.requests; ++r) {
            int first = batch.starts[r + 1], end = batch.starts[r];
            for (const int32_t* at = batch.logits_after; at < batch.logits_after + batch.wanted; ++at)
                if (batch.starts[r] <= *at && *at < batch.starts[r + 1])
                    first = std::min(first, *at), end = std::max(end, *at + 1);
            contexts[r] += std::max(0, first - batch.starts[r]);
            for (int row = first; row < end; ++row) rows.push_back(row);
            starts.push_back(int32_t(rows.size()));
        }
        const auto before = [&](int row) { return int32_t(std::lower_bound(rows.begin(), rows.end(), row) - rows.begin()); };
        for (const AdaptedRows* all = batch.adapted; all < batch.adapted + batch.adapted_count; ++all) {
            const int32_t first = before(all->first);
            adapted.push_back({first, before(all->first + all->count) - first, all->products});
        }
    }

    // It points at the vectors here, and asks for no logits.
    Batch of(const Batch& batch, const float* layer_inputs) const {
        return {int32_t(rows.size()), batch.requests, 0,       starts.data(), contexts.data(),
                batch.table_starts,   batch.tables,   nullptr, layer_inputs,  adapted.data(),
                int32_t(adapted.size()), batch.strips};
    }
};
