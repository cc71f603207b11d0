// Logits of which a mask, a bit for each token, leaves some.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "search.h"

// Copies the logits of the tokens in the mask; those of the others become -inf.
inline void mask(const float* logits, const uint32_t* words, int vocab, float* masked) {
    int id = 0;
    for (; id + 32 <= vocab; id += 32) {
        const uint32_t word = words[id / 32];
        if (word == 0)
            std::fill_n(masked + id, 32, -INFINITY);
        else if (word == ~0u)
            std::copy_n(logits + id, 32, masked + id);
        else
            for (int bit = 0; bit < 32; ++bit) masked[id + bit] = word >> bit & 1 ? logits[id + bit] : -INFINITY;
    }
    for (; id < vocab; ++id) masked[id] = words[id / 32] >> id % 32 & 1 ? logits[id] : -INFINITY;
}

// The largest number of each chunk.
inline void chunk_maxima(const float* logits, int vocab, float* maxima) {
    for (int begin = 0; begin < vocab; begin += CHUNK) {
        const int end = std::min(begin + CHUNK, vocab);
        Vector largest = broadcast(-INFINITY);
        int id = begin;
        for (; id + LANES <= end; id += LANES) largest = larger(load(logits + id), largest);
        float most = highest(largest);
        for (; id < end; ++id) most = std::max(most, logits[id]);
        *maxima++ = most;
    }
}
