// Draws: a request's logits, the settings that truncate them, and the noise by which a token wins.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "vectors.h"

// DRAW in search.py has the same fields. The logits have no NaN; `maxima` are those of their chunks. A top_k of 0, a
// lowest score of -infinity and a top_p of 1 keep everything.
struct Draw {
    const float *logits, *maxima;
    uint64_t key;  // of its noise
    double top_p;
    float best;  // the largest logit
    float temperature, lowest;
    int32_t top_k;

    // For a logit or a vector of them. Dividing by 1 takes as long as by other numbers.
    template <class Numbers>
    Numbers score(Numbers logits) const {
        const Numbers below = logits - best;
        return temperature == 1.0f ? below : below / temperature;
    }
};

// SplitMix64, see noise.py.
struct Noise {
    static constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15, FIRST = 0xBF58476D1CE4E5B9, SECOND = 0x94D049BB133111EB;

    uint64_t key;

    uint64_t first(uint64_t id) const { return key + (id + 1) * GOLDEN; }
    // The bits before the last fold, which leaves the upper 31 unchanged; for one first state or several.
    template <class Integers>
    static Integers unfolded(Integers state) {
        state = (state ^ state >> 30) * FIRST;
        return (state ^ state >> 27) * SECOND;
    }
    // `unfolded` is below this bound for noise of at least -log(share), because noise is at most -log of its uniform.
    static uint64_t bound(float share) {
        const uint64_t most = share < 1.0f ? uint64_t(share * 0x1p31f) + 1 : ~uint64_t{0};
        return most >> 31 ? ~uint64_t{0} : most << 33;
    }
    static float gumbel(uint64_t unfolded) {
        const float uniform = float((unfolded ^ unfolded >> 31) >> 11) * 0x1p-53f;
        return -std::log(std::clamp(-std::log1p(-uniform), 0x1p-54f, 64.0f));
    }
};
