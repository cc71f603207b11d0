// The tokens that can win a draw, found among a request's logits: contenders.py says the same in numpy.
//
// Too many are no harm: who wins is seen later, in one way for all. Where something is computed in another way than there,
// the bounds are wider by what it may differ.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

#include "powers.h"

// A request's logits, none of them NaN, in blocks of equal size, the largest of each; what is kept of them: 0 of top_k and
// minus infinity as the lowest score are all.
struct Draw {
    const float *logits, *maxima;
    uint64_t key;  // of its noise
    float best;    // the largest logit
    float temperature, lowest;
    int32_t top_k;

    float score(float logit) const { return (logit - best) / temperature; }
    // A logit of about this score, below the largest.
    float logit(float score) const { return std::min(best + score * temperature, std::nextafter(best, -INFINITY)); }
    bool keeps_all() const { return top_k == 0 && lowest == -INFINITY; }
};

struct Contender {
    int32_t id;
    float score;
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
    float gumbel(uint64_t id) const {
        const uint64_t state = unfolded(first(id));
        const float uniform = float((state ^ state >> 31) >> 11) * 0x1p-53f;
        return -std::log(std::clamp(-std::log1p(-uniform), 0x1p-54f, 64.0f));
    }
};

typedef double Doubles __attribute__((vector_size(LANES * 8)));
typedef uint64_t States __attribute__((vector_size(64)));

class Search {
public:
    Search(const Draw& draw, int vocab, int blocks) : draw_(draw), vocab_(vocab), blocks_(blocks) {}

    // In the order of their ids.
    std::vector<Contender> contenders() const { return draw_.keeps_all() ? lucky() : kept(); }

    // The sum of e^score over the vocabulary, to less than 1e-5 of it.
    double weight() const {
        constexpr int FLOATS = 8;  // vectors that are summed before their sum is
        Doubles sums{};
        int id = 0;
        for (; id + FLOATS * LANES <= vocab_; id += FLOATS * LANES) {
            Vector sum{};
            for (int i = 0; i < FLOATS; ++i)
                sum += exponential((load(draw_.logits + id + i * LANES) - draw_.best) / draw_.temperature);
            sums += __builtin_convertvector(sum, Doubles);
        }
        double whole = 0;
        for (int lane = 0; lane < LANES; ++lane) whole += sums[lane];
        for (; id < vocab_; ++id) whole += std::exp(draw_.score(draw_.logits[id]));
        return whole;
    }

private:
    static constexpr float NEAR = 8.0f;  // as in contenders.py
    static constexpr float MARGIN = 2e-3f;

    void add(std::vector<Contender>& found, int id) const { found.push_back({id, draw_.score(draw_.logits[id])}); }

    std::vector<Contender> above(float floor) const {
        std::vector<Contender> found;
        const int size = vocab_ / blocks_;
        for (int block = 0; block < blocks_; ++block) {
            if (!(draw_.maxima[block] > floor)) continue;
            int id = block * size;
            for (; id + LANES <= (block + 1) * size; id += LANES)
                for (uint32_t hits = bits_of_larger(load(draw_.logits + id), floor); hits; hits &= hits - 1)
                    add(found, id + std::countr_zero(hits));
            for (; id < (block + 1) * size; ++id)
                if (draw_.logits[id] > floor) add(found, id);
        }
        return found;
    }

    // Those that min_p and top_k keep.
    std::vector<Contender> kept() const {
        float nearest = draw_.lowest;
        if (draw_.top_k && draw_.top_k <= blocks_)
            nearest = std::max(nearest, draw_.score(reached()));
        const float floor = nearest > -INFINITY ? draw_.logit(nearest - MARGIN) : -INFINITY;
        std::vector<Contender> found = above(floor);
        float limit = lowest(found);
        if (floor > -INFINITY && !(limit > draw_.score(floor))) {  // these are too few to tell
            found = above(-INFINITY);
            limit = lowest(found);
        }
        std::erase_if(found, [limit](const Contender& one) { return one.score < limit; });
        return found;
    }

    // The lowest score that is kept of these.
    float lowest(const std::vector<Contender>& found) const {
        if (!draw_.top_k || draw_.top_k > int(found.size())) return draw_.lowest;
        std::vector<float> scores;
        for (const Contender& one : found) scores.push_back(one.score);
        return std::max(draw_.lowest, kth(std::move(scores)));
    }

    // One of the largest numbers that top_k blocks reach, by halving where it is sought: sorting takes ten times as long.
    float reached() const {
        constexpr float SPAN = 64.0f;
        constexpr int HALVINGS = 12;
        float low = draw_.best - SPAN, high = draw_.best;
        if (blocks_above(low) < draw_.top_k) return kth({draw_.maxima, draw_.maxima + blocks_});
        for (int i = 0; i < HALVINGS; ++i) {
            const float middle = (low + high) / 2;
            (blocks_above(middle) < draw_.top_k ? high : low) = middle;
        }
        return low;
    }

    int blocks_above(float floor) const {
        int count = 0, block = 0;
        for (; block + LANES <= blocks_; block += LANES)
            count += std::popcount(bits_of_larger(load(draw_.maxima + block), floor));
        for (; block < blocks_; ++block) count += draw_.maxima[block] > floor;
        return count;
    }

    // The top_k-th largest.
    float kth(std::vector<float> numbers) const {
        const auto place = numbers.begin() + draw_.top_k - 1;
        std::nth_element(numbers.begin(), place, numbers.end(), std::greater<float>());
        return *place;
    }

    // Those near the likeliest, and those whose noise is large enough to beat the best of these.
    std::vector<Contender> lucky() const {
        const Noise noise{draw_.key};
        const float floor = draw_.logit(-NEAR);
        const std::vector<Contender> near = above(floor);
        float best = -INFINITY;
        for (const Contender& one : near) best = std::max(best, one.score + noise.gumbel(one.id));
        // noise is at most -log of its uniform, and the scores of all others are at most the floor's
        const double share = std::exp(std::min(0.0, double(draw_.score(floor)) - best + MARGIN));
        const uint64_t most = uint64_t(share * 0x1p31) + 1;
        std::vector<Contender> found;
        drawn_below(noise, most >> 31 ? ~uint64_t{0} : most << 33, found);
        const auto by_id = [](const Contender& one, const Contender& other) { return one.id < other.id; };
        std::vector<Contender> all;
        std::set_union(near.begin(), near.end(), found.begin(), found.end(), std::back_inserter(all), by_id);
        return all;
    }

    void drawn_below(const Noise& noise, uint64_t limit, std::vector<Contender>& found) const {
        constexpr int EACH = sizeof(States) / sizeof(uint64_t), ONCE = 8 * EACH;
        States states;
        for (int i = 0; i < EACH; ++i) states[i] = noise.first(i);
        for (int begin = 0; begin < vocab_; begin += ONCE) {
            States below{};
            for (int i = 0; i < ONCE; i += EACH, states += EACH * Noise::GOLDEN)
                below |= States(Noise::unfolded(states) < limit);
            bool any = false;
            for (int i = 0; i < EACH; ++i) any |= below[i] != 0;
            for (int id = begin; any && id < std::min(begin + ONCE, vocab_); ++id)
                if (Noise::unfolded(noise.first(id)) < limit) add(found, id);
        }
    }

    const Draw& draw_;
    const int vocab_, blocks_;
};
