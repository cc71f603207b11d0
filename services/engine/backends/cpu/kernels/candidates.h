// The candidates of a draw: the tokens whose score plus noise comes close to the best.
//
// Python chooses the winner, in the same way for all samplers. Noise is computed differently here and differs by less
// than a millionth; MARGIN is far larger.
#pragma once

#include <vector>

#include "powers.h"
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

struct Candidate {
    int32_t id;
    float score, sum;  // sum: of score and noise
};

class Candidates {
public:
    Candidates(const Draw& draw, int vocab) : draw_(draw), search_(draw, vocab), noise_{draw.key} {
        for (int i = 0; i < EACH; ++i) steps_[i] = i * Noise::GOLDEN;
    }

    // In the order of ids. A chunk's tokens need noise that lifts its largest score to the best sum so far, which few
    // have: for the others the bits of their noise are all that is computed.
    std::vector<Candidate> find() && {
        const float limit = search_.limit();
        search_.each_chunk(limit, [&](int begin, int end) {
            uint64_t hits = lucky(begin, bound_ * share(begin));
            if (end - begin < CHUNK) hits &= (uint64_t{1} << (end - begin)) - 1;
            for (; hits; hits &= hits - 1) {
                const int id = begin + std::countr_zero(hits);
                if (const float score = draw_.score(draw_.logits[id]); score >= limit) enter(id, score);
            }
        });
        std::erase_if(found_, [this](const Candidate& one) { return one.sum < best_ - MARGIN; });
        return std::move(found_);
    }

private:
    static constexpr float MARGIN = 2e-3f;
    static constexpr int EACH = sizeof(States) / sizeof(uint64_t);

    // e^score of a chunk's largest score.
    float share(int begin) {
        const int chunk = begin / CHUNK, first = chunk / LANES * LANES;
        if (first != first_) store(shares_, exponential(search_.tops(first_ = first)));
        return shares_[chunk - first];
    }

    // A bit for each token of a chunk whose noise is at least -log(share).
    uint64_t lucky(int begin, float share) const {
        const uint64_t bound = Noise::bound(share);
        States states = steps_ + noise_.first(begin);
        uint64_t hits = 0;
        for (int i = 0; i < CHUNK; i += EACH, states += EACH * Noise::GOLDEN)
            hits |= bits_of_smaller(Noise::unfolded(states), bound) << i;
        return hits;
    }

    void enter(int32_t id, float score) {
        const float sum = score + Noise::gumbel(Noise::unfolded(noise_.first(id)));
        if (sum > best_) best_ = sum, bound_ = std::exp(MARGIN - best_);
        if (sum >= best_ - MARGIN) found_.push_back({id, score, sum});
    }

    const Draw& draw_;
    const Search search_;
    const Noise noise_;
    States steps_;
    int first_ = -1;
    float shares_[LANES];                          // of the chunks from first_ on
    float best_ = -INFINITY, bound_ = INFINITY;    // bound_: e^(MARGIN - best_)
    std::vector<Candidate> found_;
};
