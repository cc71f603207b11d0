// Finds what min_p, top_k and top_p keep of a request's logits, and the likeliest tokens.
#pragma once

#include <numeric>
#include <vector>

#include "draws.h"
#include "nucleus.h"

constexpr int CHUNK = 64;  // tokens; the last chunk may have fewer

class Search {
public:
    Search(const Draw& draw, int vocab) : draw_(draw), vocab_(vocab), chunks_((vocab + CHUNK - 1) / CHUNK) {}

    // The lowest score that is kept.
    float limit() const {
        float limit = draw_.lowest;
        if (draw_.top_k) limit = std::max(limit, kth(draw_.top_k));
        return draw_.top_p < 1.0 ? std::max(limit, nucleus(limit)) : limit;
    }

    // Calls work(id, scores, bits) for vectors of tokens, from `id` on, some of which have at least this score; those
    // have a bit, but for scores of -infinity.
    template <class Work>
    void each_from(float limit, const Work& work) const {
        each_chunk(limit, [&](int begin, int end) {
            for (int id = begin; id < end; id += LANES) {
                const Vector scores = draw_.score(load_some(draw_.logits + id, end - id));
                if (const uint32_t bits = bits_from(scores, limit)) work(id, scores, bits);
            }
        });
    }

    // Calls work(begin, end) for the ids of each chunk that has a token of at least this score.
    template <class Work>
    void each_chunk(float limit, const Work& work) const {
        for (int first = 0; first < chunks_; first += LANES)
            for (uint32_t bits = bits_from(tops(first), limit); bits; bits &= bits - 1) {
                const int begin = (first + std::countr_zero(bits)) * CHUNK;
                work(begin, std::min(begin + CHUNK, vocab_));
            }
    }

    // The largest score of each of LANES chunks.
    Vector tops(int first) const { return draw_.score(load_some(draw_.maxima + first, chunks_ - first)); }

    // A bit for each score from this one on, except for those of -infinity.
    static uint32_t bits_from(Vector scores, float limit) { return bits_of((scores >= limit) & (scores > -INFINITY)); }

    // The weight of all tokens with scores of at least `limit` and below `end`.
    double weight(float limit, float end) const {
        Sum sum;
        each_from(std::max(limit, NOTHING), [&](int, Vector scores, uint32_t) {
            const Ints counted = (scores >= limit) & (scores < end);
            if (bits_of(counted)) sum.add(weights(counted ? scores : broadcast(-INFINITY)));
        });
        return sum.total();
    }

    // The tokens with the `count` largest logits, in descending order; of equal ones the lower id comes first.
    void likeliest(int count, int64_t* to) const {
        std::vector<int32_t> ids;
        each_from(bound(count), [&](int id, Vector, uint32_t bits) {
            for (; bits; bits &= bits - 1) ids.push_back(id + std::countr_zero(bits));
        });
        if (int(ids.size()) < count) {
            ids.resize(vocab_);
            std::iota(ids.begin(), ids.end(), 0);
        }
        const auto before = [this](int32_t one, int32_t other) {
            const float a = draw_.logits[one], b = draw_.logits[other];
            return a > b || (a == b && one < other);
        };
        std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), before);
        std::copy_n(ids.begin(), count, to);
    }

private:
    static constexpr float NUCLEUS = -10.0f;  // scores from here on are searched first; flat distributions need all
    static constexpr float NOTHING = -25.0f;  // tokens of this score weigh nothing

    // The first `count` numbers, then -infinity.
    static Vector load_some(const float* from, int count) {
        if (count >= LANES) return load(from);
        Vector some = broadcast(-INFINITY);
        std::memcpy(&some, from, count * sizeof *from);
        return some;
    }

    Selection from(float limit) const {
        Selection found(vocab_);
        each_from(limit, [&](int, Vector scores, uint32_t bits) { found.add(scores, bits); });
        return found;
    }

    // The lowest score that top_p keeps of the tokens from `limit` on.
    float nucleus(float limit) const {
        const float likely = std::max(limit, NUCLEUS);
        Selection some = from(likely);
        const double held = some.weigh(false), goal = std::trunc(draw_.top_p * (held + weight(limit, likely)));
        if (held < goal) some = from(std::max(limit, NOTHING)), some.weigh(false);
        return some.reached(goal);
    }

    // The k-th largest score; -infinity if there are fewer.
    float kth(int k) const {
        Selection some = from(bound(k));
        if (some.count() < k) return -INFINITY;
        some.weigh(true);
        return some.reached(k);
    }

    // A lower bound of the k-th largest score: that of the chunks' maxima.
    float bound(int k) const {
        Selection maxima(chunks_);
        for (int first = 0; first < chunks_; first += LANES) maxima.add(tops(first), bits_from(tops(first), -INFINITY));
        if (maxima.count() < k) return -INFINITY;
        maxima.weigh(true);
        return maxima.reached(k);
    }

    const Draw& draw_;
    const int vocab_, chunks_;
};
