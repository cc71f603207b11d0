// Contenders and weights of many draws: what Python calls.

#include "search.h"

using Finds = std::vector<std::vector<Contender>>;

extern "C" {

Finds* orca_new_finds() { return new Finds; }

void orca_delete_finds(Finds* finds) { delete finds; }

// Finds the contenders of `count` draws from vocabularies of this size, in so many blocks: how many each has to `counts`.
void orca_search(Finds* finds, const Draw* draws, int count, int vocab, int blocks, int threads, int64_t* counts) {
    finds->resize(count);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < count; ++i) {
        (*finds)[i] = Search(draws[i], vocab, blocks).contenders();
        counts[i] = int64_t((*finds)[i].size());
    }
}

// The sum of e^score over the vocabulary, by the temperature of each draw.
void orca_weigh(const Draw* draws, int count, int vocab, int blocks, int threads, double* sums) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < count; ++i) sums[i] = Search(draws[i], vocab, blocks).weight();
}

// Copies what was found last, one draw after the other.
void orca_found(const Finds* finds, int64_t* ids, float* scores) {
    for (const auto& found : *finds)
        for (const Contender& one : found) {
            *ids++ = one.id;
            *scores++ = one.score;
        }
}
}
