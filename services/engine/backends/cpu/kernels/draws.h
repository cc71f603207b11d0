// Draws: a request's logits, the settings that truncate them, and the noise by which a token wins.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>

#include "vectors.h"

// DRAW in search.py has the same fields. The logits have no NaN; `maxima` are those of their chunks, which have equal
// sizes. A top_k of 0, a lowest score of -infinity and a top_p of 1 keep everything.
struct Draw {
    const float *logits, *maxima;
    uint64_t key;  // of its noise
    double top_p;
    float best;  // the largest logit
    float temperature, lowest;
    int32_t top_k;

    float score(float logit) const { return (logit - best) / temperature; }
    // A logit of about this score, below the largest.
    float logit(float score) const { return std::min(best + score * temperature, std::nextafter(best, -INFINITY)); }
    bool keeps_all() const { return top_k == 0 && lowest == -INFINITY && top_p >= 1.0; }
};

// Tokens and their scores, in the order of their ids.
class Found {
public:
    // Empty, with room for so many, and for a vector that is stored whole.
    explicit Found(int room = 0) : ids_(new int32_t[room + LANES]), scores_(new float[room + LANES]) {}

    int count() const { return count_; }
    int32_t id(int i) const { return ids_[i]; }
    const int32_t* ids() const { return ids_.get(); }
    const float* scores() const { return scores_.get(); }

    void add(int32_t id, float score) {
        ids_[count_] = id;
        scores_[count_++] = score;
    }

    // Adds those of LANES tokens that have a bit.
    void add(Ints ids, Vector scores, uint32_t bits) {
#if defined(__AVX512F__)
        _mm512_storeu_si512(&ids_[count_], _mm512_maskz_compress_epi32(__mmask16(bits), __m512i(ids)));
        store(&scores_[count_], Vector(_mm512_maskz_compress_ps(__mmask16(bits), __m512(scores))));
        count_ += std::popcount(bits);
#else
        for (; bits; bits &= bits - 1) add(ids[std::countr_zero(bits)], scores[std::countr_zero(bits)]);
#endif
    }

    // Drops tokens with a lower score, and writes -infinity after the last.
    void drop_below(float limit) {
        const int count = count_;
        count_ = 0;
        for (int i = 0; i < count; i += LANES) {
            Ints ids;
            std::memcpy(&ids, &ids_[i], sizeof ids);
            const uint32_t left = count - i < LANES ? (1u << (count - i)) - 1 : ~0u;
            const Vector scores = load(&scores_[i]);
            add(ids, scores, bits_of_larger(scores, std::nextafter(limit, -INFINITY)) & left);
        }
        store(&scores_[count_], broadcast(-INFINITY));
    }

private:
    std::unique_ptr<int32_t[]> ids_;
    std::unique_ptr<float[]> scores_;
    int count_ = 0;
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
    // `unfolded` is below this bound for noise of at least `least`, because noise is at most -log of its uniform.
    static uint64_t bound(double least) {
        const uint64_t most = uint64_t(std::exp(std::min(0.0, -least)) * 0x1p31) + 1;
        return most >> 31 ? ~uint64_t{0} : most << 33;
    }
    static float gumbel(uint64_t unfolded) {
        const float uniform = float((unfolded ^ unfolded >> 31) >> 11) * 0x1p-53f;
        return -std::log(std::clamp(-std::log1p(-uniform), 0x1p-54f, 64.0f));
    }
};
