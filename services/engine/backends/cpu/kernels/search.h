// Finds what min_p, top_k and top_p keep of a request's logits, and the likeliest tokens.
#pragma once

#include <functional>
#include <numeric>
#include <vector>

#include "draws.h"
#include "nucleus.h"

class Search {
public:
    Search(const Draw& draw, int vocab, int chunks) : draw_(draw), vocab_(vocab), chunks_(chunks) {}

    Found kept() const {
        constexpr float NUCLEUS = 10.0f;  // scores above -NUCLEUS are searched first; flat distributions need all
        constexpr float MARGIN = 1e-3f;
        float nearest = draw_.lowest;
        if (draw_.top_k) nearest = std::max(nearest, draw_.score(reached(draw_.top_k)));
        if (nearest == -INFINITY && draw_.top_p < 1.0) nearest = -NUCLEUS;
        const float floor = draw_.logit(nearest - MARGIN);
        Found found = above(floor);
        float limit = lowest(found, draw_.score(floor));
        if (floor > -INFINITY && !(limit > draw_.score(floor))) {  // too few to know
            found = above(-INFINITY);
            limit = lowest(found, -INFINITY);
        }
        found.drop_below(limit);
        return found;
    }

    // The tokens with a larger logit.
    Found above(float floor) const {
        const int size = vocab_ / chunks_;
        const Ints ids = __builtin_convertvector(numbers(), Ints);
        Found found(chunks_above(floor) * size);
        for (int chunk = 0; chunk < chunks_; ++chunk) {
            if (!(draw_.maxima[chunk] > floor)) continue;
            int id = chunk * size;
            for (; id + LANES <= (chunk + 1) * size; id += LANES) {
                const Vector logits = load(draw_.logits + id);
                if (const uint32_t hits = bits_of_larger(logits, floor)) found.add(ids + id, scores(logits), hits);
            }
            for (; id < (chunk + 1) * size; ++id)
                if (draw_.logits[id] > floor) found.add(id, draw_.score(draw_.logits[id]));
        }
        return found;
    }

    int chunks_above(float floor) const {
        int count = 0, chunk = 0;
        for (; chunk + LANES <= chunks_; chunk += LANES)
            count += std::popcount(bits_of_larger(load(draw_.maxima + chunk), floor));
        for (; chunk < chunks_; ++chunk) count += draw_.maxima[chunk] > floor;
        return count;
    }

    // The weight of all tokens.
    double weight() const {
        constexpr float NOTHING = -25.0f;  // tokens of this score weigh nothing
        const int size = vocab_ / chunks_;
        Sum sum;
        for (int chunk = 0; chunk < chunks_; ++chunk) {
            if (!(draw_.score(draw_.maxima[chunk]) > NOTHING)) continue;
            const float *logits = draw_.logits + chunk * size, *end = logits + size;
            for (; logits + LANES <= end; logits += LANES) sum.add(weights(scores(load(logits))));
            if (logits < end) sum.add(weights(scores(load_some(logits, int(end - logits)))));
        }
        return sum.total();
    }

    // The tokens with the `count` largest logits, in descending order; of equal ones the lower id comes first.
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
    // The first `count` numbers, then -infinity.
    static Vector load_some(const float* from, int count) {
        Vector some = broadcast(-INFINITY);
        std::memcpy(&some, from, count * sizeof *from);
        return some;
    }

    Vector scores(Vector logits) const { return (logits - draw_.best) / draw_.temperature; }

    // The lowest score that is kept, given `found` and that all other scores are at most `outside`; not above `outside`
    // if it cannot be known. With a top_p, `found` loses the tokens that min_p and top_k drop.
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

    // A lower bound of the count-th largest logit, from the maxima alone. Halving an interval takes a tenth of the time
    // of sorting.
    float reached(int count) const {
        constexpr float SPAN = 64.0f;
        constexpr int HALVINGS = 12;
        if (count > chunks_) return -INFINITY;
        float low = draw_.best - SPAN, high = draw_.best;
        if (chunks_above(low) < count) return kth({draw_.maxima, draw_.maxima + chunks_}, count);
        for (int i = 0; i < HALVINGS; ++i) {
            const float middle = (low + high) / 2;
            (chunks_above(middle) < count ? high : low) = middle;
        }
        return low;
    }

    static float kth(std::vector<float> numbers, int k) {
        const auto place = numbers.begin() + k - 1;
        std::nth_element(numbers.begin(), place, numbers.end(), std::greater<float>());
        return *place;
    }

    const Draw& draw_;
    const int vocab_, chunks_;
};
