// Weights of tokens, and the likeliest ones that weigh enough: what top_p keeps, and top_k. truncation.py has the same
// formulas in torch.
#pragma once

#include <bit>
#include <cmath>
#include <utility>

#include "pages.h"
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

// Scores of tokens, to find the likeliest ones that together weigh enough. Each token weighs 1, or its weight. A thread
// has one at a time, because all are in the same memory.
class Selection {
public:
    // With room for so many.
    explicit Selection(int room) {
        thread_local Numbers scores, weights;
        if (scores.size() < size_t(room + LANES)) scores.resize(room + LANES), weights.resize(room + LANES);
        scores_ = scores.data(), weights_ = weights.data();
    }

    // Adds finite scores: those that have a bit.
    void add(Vector scores, uint32_t bits) {
        store_those(&scores_[count_], scores, bits);
        count_ += std::popcount(bits);
    }

    int count() const { return count_; }

    // Gives each token that was added its weight, or 1. Returns the weight of all.
    double weigh(bool one_each) {
        Sum sum;
        Bounds bounds;
        end();
        for (int i = 0; i < count_; i += LANES) {
            const Vector scores = load(scores_ + i), weight = one_each ? broadcast(1.0f) : weights(scores);
            store(weights_ + i, weight);
            sum.add(scores == scores ? weight : Vector{});
            bounds.add(scores);
        }
        set(bounds);
        return sum.total();
    }

    // The largest score such that the tokens from it on weigh at least `goal`; the lowest if all do not. The scores
    // are halved, and those that cannot be it are dropped.
    float reached(double goal) {
        double above = 0;
        while (lowest_ < highest_) {
            const float half = lowest_ / 2 + highest_ / 2, middle = half > lowest_ ? half : highest_;
            const double upper = weight_from(middle);
            if (above + upper >= goal) {
                keep([=](Vector scores) { return scores >= middle; });
            } else {
                above += upper;
                keep([=](Vector scores) { return scores < middle; });
            }
        }
        return lowest_;
    }

private:
    // Numbers that are NaN are left out.
    struct Bounds {
        Vector low = broadcast(INFINITY), high = broadcast(-INFINITY);

        void add(Vector some) { low = smaller(some, low), high = larger(some, high); }
    };

    void set(const Bounds& bounds) { lowest_ = -highest(-bounds.low), highest_ = highest(bounds.high); }

    // NaN after the last score is neither at least as large as another one nor smaller.
    void end() { store(scores_ + count_, broadcast(NAN)); }

    double weight_from(float score) const {
        Sum sum;
        for (int i = 0; i < count_; i += LANES) sum.add(load(scores_ + i) >= score ? load(weights_ + i) : Vector{});
        return sum.total();
    }

    template <class Test>
    void keep(const Test& test) {
        Bounds bounds;
        const int count = std::exchange(count_, 0);
        for (int i = 0; i < count; i += LANES) {
            const Vector scores = load(scores_ + i), weights = load(weights_ + i);
            const auto kept = test(scores);
            const uint32_t bits = bits_of(kept);
            bounds.add(kept ? scores : broadcast(NAN));
            store_those(weights_ + count_, weights, bits);
            add(scores, bits);
        }
        end();
        set(bounds);
    }

    float *scores_, *weights_;
    int count_ = 0;
    float lowest_, highest_;
};
