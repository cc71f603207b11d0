// Logits of which a mask, a bit for each token, leaves some.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "vectors.h"

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
inline void chunk_maxima(const float* logits, int vocab, int chunks, float* maxima) {
    const int size = vocab / chunks;
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const float* from = logits + chunk * size;
        Vector largest = broadcast(-INFINITY);
        int i = 0;
        for (; i + LANES <= size; i += LANES) {
            const Vector next = load(from + i);
            largest = next > largest ? next : largest;
        }
        float most = -INFINITY;
        for (int lane = 0; lane < LANES; ++lane) most = std::max(most, largest[lane]);
        for (; i < size; ++i) most = std::max(most, from[i]);
        maxima[chunk] = most;
    }
}
