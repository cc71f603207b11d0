// What min_p, top_k and top_p keep, and the likeliest tokens, found among a request's logits.
#pragma once

#include <functional>
#include <numeric>
#include <vector>

#include "draws.h"
#include "nucleus.h"

class Search {
public:
    Search(const Draw& draw, int vocab, int blocks) : draw_(draw), vocab_(vocab), blocks_(blocks) {}

    Found kept() const {
        constexpr float NUCLEUS = 10.0f;  // as in contenders.py
        constexpr float MARGIN = 1e-3f;
        float nearest = draw_.lowest;
        if (draw_.top_k) nearest = std::max(nearest, draw_.score(reached(draw_.top_k)));
        if (nearest == -INFINITY && draw_.top_p < 1.0) nearest = -NUCLEUS;
        const float floor = draw_.logit(nearest - MARGIN);
        Found found = above(floor);
        float limit = lowest(found, draw_.score(floor));
        if (floor > -INFINITY && !(limit > draw_.score(floor))) {  // these are too few to tell
            found = above(-INFINITY);
            limit = lowest(found, -INFINITY);
        }
        found.drop_below(limit);
        return found;
    }

    // Tokens with a larger logit.
    Found above(float floor) const {
        const int size = vocab_ / blocks_;
        const Ints ids = __builtin_convertvector(numbers(), Ints);
        Found found(blocks_above(floor) * size);
        for (int block = 0; block < blocks_; ++block) {
            if (!(draw_.maxima[block] > floor)) continue;
            int id = block * size;
            for (; id + LANES <= (block + 1) * size; id += LANES) {
                const Vector logits = load(draw_.logits + id);
                if (const uint32_t hits = bits_of_larger(logits, floor)) found.add(ids + id, scores(logits), hits);
            }
            for (; id < (block + 1) * size; ++id)
                if (draw_.logits[id] > floor) found.add(id, draw_.score(draw_.logits[id]));
        }
        return found;
    }

    int blocks_above(float floor) const {
        int count = 0, block = 0;
        for (; block + LANES <= blocks_; block += LANES)
            count += std::popcount(bits_of_larger(load(draw_.maxima + block), floor));
        for (; block < blocks_; ++block) count += draw_.maxima[block] > floor;
        return count;
    }

    // What all tokens weigh.
    double weight() const {
        constexpr float NOTHING = -25.0f;  // tokens of this score weigh nothing
        const int size = vocab_ / blocks_;
        Sum sum;
        for (int block = 0; block < blocks_; ++block) {
            if (!(draw_.score(draw_.maxima[block]) > NOTHING)) continue;
            const float *logits = draw_.logits + block * size, *end = logits + size;
            for (; logits + LANES <= end; logits += LANES) sum.add(weights(scores(load(logits))));
            if (logits < end) sum.add(weights(scores(load_some(logits, int(end - logits)))));
        }
        return sum.total();
    }

    // The ids of the `count` largest logits, these falling; lower ids first among equals.
    void likeliest(int count, int64_t* to) const {
        const Found found = above(std::nextafter(reached(count), -INFINITY));
        std::vector<int32_t> ids(found.ids(), found.ids() + found.count());
        if (found.count() < count) {
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
    // The first `count` numbers, and minus infinities.
    static Vector load_some(const float* from, int count) {
        Vector some = broadcast(-INFINITY);
        std::memcpy(&some, from, count * sizeof *from);
        return some;
    }

    Vector scores(Vector logits) const { return (logits - draw_.best) / draw_.temperature; }

    // The lowest score that is kept of these and of others, which have `outside` at most; no more than that if it cannot be
    // told. Those dropped by min_p or top_k are lost where there is a top_p.
    float lowest(Found& found, float outside) const {
        const bool every = outside == -INFINITY;
        float limit = draw_.lowest;
        if (draw_.top_k && draw_.top_k <= found.count())
            limit = std::max(limit, kth({found.scores(), found.scores() + found.count()}, draw_.top_k));
        if (draw_.top_p >= 1.0) return limit;
        const bool alone = !draw_.top_k && draw_.lowest == -INFINITY;
        if (!alone && !every && !(limit > outside)) return -INFINITY;
        found.drop_below(limit);
        const Weights weights(found.scores(), found.count());
        return std::max(limit, weights.reached(std::trunc(draw_.top_p * (alone ? weight() : weights.sum()))));
    }

    // A number that at least `count` logits are as large as, told by the blocks' largest alone, so lower than need be. It is
    // sought by halving, which takes a tenth of what sorting does.
    float reached(int count) const {
        constexpr float SPAN = 64.0f;
        constexpr int HALVINGS = 12;
        if (count > blocks_) return -INFINITY;
        float low = draw_.best - SPAN, high = draw_.best;
        if (blocks_above(low) < count) return kth({draw_.maxima, draw_.maxima + blocks_}, count);
        for (int i = 0; i < HALVINGS; ++i) {
            const float middle = (low + high) / 2;
            (blocks_above(middle) < count ? high : low) = middle;
        }
        return low;
    }

    static float kth(std::vector<float> numbers, int k) {
        const auto place = numbers.begin() + k - 1;
        std::nth_element(numbers.begin(), place, numbers.end(), std::greater<float>());
        return *place;
    }

    const Draw& draw_;
    const int vocab_, blocks_;
};
