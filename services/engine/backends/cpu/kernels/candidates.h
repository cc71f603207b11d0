// The candidates of a draw: the tokens whose score plus noise comes close to the best.
//
// Python chooses the winner, in the same way for all samplers. Noise is computed differently here and differs by less
// than a millionth; MARGIN is far larger.
#pragma once

#include <vector>

#include "search.h"

typedef uint64_t States __attribute__((vector_size(64)));

// A bit for each number of v that is smaller.
inline uint64_t bits_of_smaller(States v, uint64_t than) {
#if defined(__AVX512F__)
    return _mm512_cmplt_epu64_mask(__m512i(v), _mm512_set1_epi64(than));
#else
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof v / sizeof than; ++i) bits |= uint64_t(v[i] < than) << i;
    return bits;
#endif
}

class Candidates {
public:
    Candidates(const Draw& draw, int vocab, int chunks)
        : draw_(draw), vocab_(vocab), search_(draw, vocab, chunks), noise_{draw.key} {}

    // In the order of ids.
    Found find() && {
        const float floor = draw_.logit(-near());
        if (draw_.keeps_all()) {
            enter_near(search_.above(floor), floor);
            enter_lucky(floor);
        } else {
            const Found kept = search_.kept();
            enter_near(kept, floor);
            enter_lucky(kept, floor);
        }
        return the_best();
    }

private:
    static constexpr float MARGIN = 2e-3f;

    struct Entry {
        int32_t id;
        float score, sum;
    };

    // Scores above the negative of this are drawn from first, for a bound that all others must reach.
    float near() const {
        constexpr float NEAREST = 2.0f, FARTHEST = 12.0f;
        constexpr int ENOUGH = 48;
        float near = FARTHEST;
        while (near > NEAREST && search_.chunks_above(draw_.logit(-near)) > ENOUGH) near -= 1.0f;
        return near;
    }

    void enter(int32_t id, float score, uint64_t unfolded) {
        const float sum = score + Noise::gumbel(unfolded);
        best_ = std::max(best_, sum);
        if (sum >= best_ - MARGIN) entries_.push_back({id, score, sum});
    }

    void enter_near(const Found& found, float floor) {
        for (int i = 0; i < found.count(); ++i)
            if (draw_.logits[found.id(i)] > floor) enter(found.id(i), found.scores()[i], state_of(found.id(i)));
    }

    // Enters the tokens of `found` below the floor whose noise is large enough.
    void enter_lucky(const Found& found, float floor) {
        const uint64_t bound = bound_below(floor);
        for (int i = 0; i < found.count(); ++i) {
            const uint64_t state = state_of(found.id(i));
            if (state < bound && !(draw_.logits[found.id(i)] > floor)) enter(found.id(i), found.scores()[i], state);
        }
    }

    // The same for all tokens.
    void enter_lucky(float floor) {
        constexpr int EACH = sizeof(States) / sizeof(uint64_t), ONCE = 64;
        const uint64_t bound = bound_below(floor);
        States states;
        for (int i = 0; i < EACH; ++i) states[i] = noise_.first(i);
        for (int begin = 0; begin < vocab_; begin += ONCE) {
            uint64_t hits = 0;
            for (int i = 0; i < ONCE; i += EACH, states += EACH * Noise::GOLDEN)
                hits |= bits_of_smaller(Noise::unfolded(states), bound) << i;
            for (; hits; hits &= hits - 1) {
                const int id = begin + std::countr_zero(hits);
                if (id < vocab_ && !(draw_.logits[id] > floor)) enter(id, draw_.score(draw_.logits[id]), state_of(id));
            }
        }
    }

    uint64_t state_of(int32_t id) const { return Noise::unfolded(noise_.first(id)); }

    uint64_t bound_below(float floor) const { return Noise::bound(double(best_) - draw_.score(floor) - MARGIN); }

    Found the_best() {
        std::erase_if(entries_, [this](const Entry& one) { return one.sum < best_ - MARGIN; });
        std::sort(entries_.begin(), entries_.end(), [](const Entry& one, const Entry& other) { return one.id < other.id; });
        Found found(int(entries_.size()));
        for (const Entry& one : entries_) found.add(one.id, one.score);
        return found;
    }

    const Draw& draw_;
    const int vocab_;
    const Search search_;
    const Noise noise_;
    float best_ = -INFINITY;
    std::vector<Entry> entries_;
};
