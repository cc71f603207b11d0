// Which experts the tokens of a batch go to, and the tokens of each expert.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "products.h"

// The experts that a layer has instead of one MLP. A token goes to the `chosen` ones with the highest logits of the
// router, and adds their outputs with shares: the softmax of all logits, or `normalised`, of those that are chosen.
// `sigmoid`: shares are the sigmoids of logits, `normalised` to a sum of 1. With a correction, experts are chosen by their
// shares among all plus that.
// Layers may have an MLP that all tokens go through as well. With one more output of the router, its output has a share:
// the sigmoid of that logit.
struct Experts {
    Matrix router;             // [count, hidden], or [count + 1, hidden]
    const Matrix *up, *down;  // [count], as of Layer
    const float* correction;  // [count] or null
    int32_t count, chosen, normalised, sigmoid;
    float scale;  // of shares

    bool has_shared_gate() const { return router.outputs > count; }
};

// Chooses experts by a token's logits, best first; of equal ones the first. A token with a logit that is not a number
// goes to the first experts, with shares that are no numbers.
inline void choose(const Experts& experts, const float* logits, int* chosen, float* shares) {
    const int count = experts.count;
    const bool defined = std::none_of(logits, logits + count, [](float x) { return std::isnan(x); });
    const float highest = *std::max_element(logits, logits + count);
    const auto weight = [&](int expert) {
        return experts.sigmoid ? 1.0f / (1.0f + std::exp(-logits[expert])) : std::exp(logits[expert] - highest);
    };
    const auto weight_of_all = [&] {
        float total = 0;
        for (int expert = 0; expert < count; ++expert) total += weight(expert);
        return experts.sigmoid ? 1.0f : total;
    };
    const float* scores = logits;
    if (experts.correction) {
        thread_local std::vector<float> corrected;
        corrected.resize(count);
        const float total = weight_of_all();
        for (int expert = 0; expert < count; ++expert)
            corrected[expert] = weight(expert) / total + experts.correction[expert];
        scores = corrected.data();
    }
    const auto before = [&](int a, int b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); };
    for (int rank = 0; rank < experts.chosen; ++rank) {
        int best = defined ? -1 : rank;
        for (int expert = 0; defined && expert < count; ++expert)
            if ((best < 0 || before(expert, best)) && (!rank || before(chosen[rank - 1], expert))) best = expert;
        chosen[rank] = best;
    }
    float total = 0;
    for (int rank = 0; rank < experts.chosen; ++rank) {
        shares[rank] = weight(chosen[rank]);
        total += shares[rank];
    }
    if (!experts.normalised) total = weight_of_all();
    if (!defined) total = NAN;
    for (int rank = 0; rank < experts.chosen; ++rank) shares[rank] = shares[rank] / total * experts.scale;
}

// The rows that one expert computes, one after another.
struct ExpertRows {
    int expert;
    const int* places;  // of each row: token * chosen + rank
    Tiles tiles;
    size_t rows, inner;  // where the inputs of its products begin
};

// A tile of an expert's rows, or one of several parts of its products.
struct ExpertItem {
    int group, index, parts;
};

// The routes of a layer's tokens. They are made anew for each layer; the memory is kept.
struct Routing {
    Numbers logits;                  // [tokens, outputs of the router]
    std::vector<int> chosen;         // [tokens, chosen]
    Numbers shares;                  // [tokens, chosen]
    std::vector<ExpertRows> groups;  // of experts that have rows
    std::vector<ExpertItem> tiles, parts;
    Numbers rows, inner;  // inputs of the experts' products
    Numbers outputs;      // [tokens, chosen, hidden]

    // Makes room for a batch.
    void begin(const Experts& experts, int tokens) {
        const size_t all = size_t(tokens) * experts.chosen;
        grow(logits, size_t(tokens) * experts.router.outputs);
        grow(shares, all);
        grow(outputs, all * experts.down->outputs);
        chosen.resize(all);
    }

    // Gathers the rows of each expert when all tokens have chosen.
    template <class Input>
    void arrange(const Experts& experts, int threads) {
        std::vector<int> starts(experts.count + 1);
        for (int expert : chosen) ++starts[expert + 1];
        for (int expert = 0; expert < experts.count; ++expert) starts[expert + 1] += starts[expert];
        places_.resize(chosen.size());
        std::vector<int> next(starts.begin(), starts.end() - 1);
        for (int place = 0; place < int(chosen.size()); ++place) places_[next[chosen[place]]++] = place;
        groups.clear();
        size_t rows_end = 0, inner_end = 0;
        for (int expert = 0; expert < experts.count; ++expert) {
            const int count = starts[expert + 1] - starts[expert];
            if (!count) continue;
            groups.push_back({expert, places_.data() + starts[expert], Tiles(count), rows_end, inner_end});
            rows_end += Input::floats(count, experts.up->inputs);
            inner_end += Input::floats(count, experts.down->inputs);
        }
        grow(rows, rows_end);
        grow(inner, inner_end);
        share_out(threads);
    }

private:
    static void grow(Numbers& numbers, size_t size) {
        if (numbers.size() < size) numbers.resize(size);
    }

    // Parts are so small that all threads end at about the same time. An expert has more of them the more rows it has.
    void share_out(int threads) {
        constexpr int64_t PARTS = 16;  // for each thread
        tiles.clear();
        for (int group = 0; group < int(groups.size()); ++group)
            for (int tile = 0; tile < groups[group].tiles.tiles; ++tile) tiles.push_back({group, tile, 1});
        parts.clear();
        const int all = int(tiles.size());
        for (int group = 0; group < int(groups.size()); ++group) {
            const int count = int((PARTS * threads * groups[group].tiles.tiles + all - 1) / all);
            for (int part = 0; part < count; ++part) parts.push_back({group, part, count});
        }
    }

    std::vector<int> places_;  // expert after expert, token after token
};
