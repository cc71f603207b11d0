// The nucleus: what top_p keeps. truncation.py has the same formulas in torch.
#pragma once

#include <cmath>
#include <memory>

#include "vectors.h"

constexpr int HALF_LANES = LANES / 2;
typedef double Doubles __attribute__((vector_size(HALF_LANES * 8)));

// Keeps the compiler from fusing a product with the addition that follows, so that the product is rounded.
inline Vector rounded(Vector product) {
#if defined(__AVX512F__)
    asm("" : "+v"(product));
#elif defined(__x86_64__)
    asm("" : "+x"(product));
#elif defined(__aarch64__)
    asm("" : "+w"(product));
#else
    asm("" : "+m"(product));
#endif
    return product;
}

// The weights of tokens with these scores: `weights` in truncation.py, to the last bit, as floats that are integers.
inline Vector weights(Vector scores) {
    constexpr float POWERS[] = {0.00967151299f, 0.0555073358f, 0.240222424f, 0.693147004f};
    constexpr float EXACT = 0x1p24f;  // floats from here on are integers
    const Vector magic = broadcast(0x1.8p23f);  // adding it rounds
    const Vector x = rounded(larger(broadcast(-32.0f), scores) * 1.44269502f);
    const Vector shifted = x + magic, rest = x - (shifted - magic);
    Vector power = rounded(rest * 0.00132647273f);
    for (const float factor : POWERS) power = rounded((power + factor) * rest);
    const Ints two_to = (same_bits<Ints>(shifted) << 23) + ((127 + 34) << 23);
    const Vector weight = (power + 1.0f) * same_bits<Vector>(two_to);
    const Vector whole_weight = __builtin_convertvector(__builtin_convertvector(weight, Ints), Vector);
    return weight < EXACT ? whole_weight : weight;
}

// An exact sum of integers, which is below 2^53.
class Sum {
public:
    void add(Vector v) {
#if defined(__AVX512F__)
        const __m512d upper = _mm512_shuffle_f64x2(__m512d(v), __m512d(v), 0xEE);
        low_ += Doubles(_mm512_cvtps_pd(_mm512_castps512_ps256(__m512(v))));
        high_ += Doubles(_mm512_cvtps_pd(_mm512_castps512_ps256(_mm512_castpd_ps(upper))));
#else
        float halves[LANES];
        store(halves, v);
        add_half(halves, low_);
        add_half(halves + HALF_LANES, high_);
#endif
    }
    double total() const {
        const Doubles both = low_ + high_;
        double total = 0;
        for (int lane = 0; lane < HALF_LANES; ++lane) total += both[lane];
        return total;
    }

private:
    typedef float HalfVector __attribute__((vector_size(HALF_LANES * 4)));

    static void add_half(const float* from, Doubles& to) {
        HalfVector half;
        std::memcpy(&half, from, sizeof half);
        to += __builtin_convertvector(half, Doubles);
    }

    Doubles low_{}, high_{};
};

// The weights of tokens with these scores, which are at most 0, have -infinity after them up to a whole vector, and
// must outlive this.
class Weights {
public:
    Weights(const float* scores, int count)
        : scores_(scores), count_((count + LANES - 1) / LANES * LANES), weights_(new float[count_]) {
        for (int i = 0; i < count_; i += LANES) store(&weights_[i], weights(load(scores + i)));
    }

    double sum() const { return from(LOWEST).weight; }

    // A score such that the tokens from it on weigh at least `goal`, and those from the next larger score on do not;
    // -infinity if all tokens together do not.
    float reached(double goal) const {
        float enough = LOWEST, few = 0.0f;
        Part low = from(enough), high = from(few);
        if (low.weight < goal) return -INFINITY;
        if (high.weight >= goal) return few;
        while (low.count - high.count > 1) {
            const float middle = (enough + few) / 2;
            if (middle == enough || middle == few) break;
            const Part part = from(middle);
            (part.weight >= goal ? enough : few) = middle;
            (part.weight >= goal ? low : high) = part;
        }
        return enough;
    }

private:
    static constexpr float LOWEST = -32.0f;  // tokens of lower scores weigh nothing

    struct Part {
        double weight;
        int count;
    };

    Part from(float score) const {
        Sum sum;
        Ints counts{};
        for (int i = 0; i < count_; i += LANES) {
            const Vector weight = load(&weights_[i]);
            const Ints some = load(scores_ + i) >= score;
            sum.add(some ? weight : Vector{});
            counts -= some;
        }
        int count = 0;
        for (int lane = 0; lane < LANES; ++lane) count += counts[lane];
        return {sum.total(), count};
    }

    const float* scores_;
    const int count_;
    const std::unique_ptr<float[]> weights_;
};
