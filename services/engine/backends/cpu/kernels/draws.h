// Draws: a request's logits, what is kept of them, and the noise by which one of these wins.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>

#include "vectors.h"

// A request's logits, none of them NaN, in blocks of equal size, the largest of each; what is kept of them: 0 of top_k, minus
// infinity as the lowest score and 1 of top_p are all.
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
    // Without any, with room for so many, and for a vector that is stored whole.
    explicit Found(int room = 0) : ids_(new int32_t[room + LANES]), scores_(new float[room + LANES]) {}

    int count() const { return count_; }
    int32_t id(int i) const { return ids_[i]; }
    const int32_t* ids() const { return ids_.get(); }
    const float* scores() const { return scores_.get(); }

    void add(int32_t id, float score) {
        ids_[count_] = id;
        scores_[count_++] = score;
    }

    // Of LANES tokens those that have a bit.
    void add(Ints ids, Vector scores, uint32_t bits) {
#if defined(__AVX512F__)
        _mm512_storeu_si512(&ids_[count_], _mm512_maskz_compress_epi32(__mmask16(bits), __m512i(ids)));
        store(&scores_[count_], Vector(_mm512_maskz_compress_ps(__mmask16(bits), __m512(scores))));
        count_ += std::popcount(bits);
#else
        for (; bits; bits &= bits - 1) add(ids[std::countr_zero(bits)], scores[std::countr_zero(bits)]);
#endif
    }

    // Drops those with a lower score, and puts minus infinities behind the last.
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

// Steps of SplitMix64: noise.py.
struct Noise {
    static constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15, FIRST = 0xBF58476D1CE4E5B9, SECOND = 0x94D049BB133111EB;

    uint64_t key;

    uint64_t first(uint64_t id) const { return key + (id + 1) * GOLDEN; }
    // All bits but for the last fold, which leaves the upper 31 as they are; of one first state or several.
    template <class Integers>
    static Integers unfolded(Integers state) {
        state = (state ^ state >> 30) * FIRST;
        return (state ^ state >> 27) * SECOND;
    }
    // What `unfolded` gives is below this where there is noise of at least so much, which is at most -log of its uniform.
    static uint64_t bound(double least) {
        const uint64_t most = uint64_t(std::exp(std::min(0.0, -least)) * 0x1p31) + 1;
        return most >> 31 ? ~uint64_t{0} : most << 33;
    }
    static float gumbel(uint64_t unfolded) {
        const float uniform = float((unfolded ^ unfolded >> 31) >> 11) * 0x1p-53f;
        return -std::log(std::clamp(-std::log1p(-uniform), 0x1p-54f, 64.0f));
    }
};
