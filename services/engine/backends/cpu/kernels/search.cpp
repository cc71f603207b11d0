// Contenders, weights and likeliest tokens of many draws: what Python calls.

#include "contest.h"

using Finds = std::vector<Found>;

extern "C" {

Finds* orca_new_finds() { return new Finds; }

void orca_delete_finds(Finds* finds) { delete finds; }

// Finds the contenders of `count` draws from vocabularies of this size, in so many blocks: how many each has to `counts`.
void orca_search(Finds* finds, const Draw* draws, int count, int vocab, int blocks, int threads, int64_t* counts) {
    finds->resize(count);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < count; ++i) {
        (*finds)[i] = Contest(draws[i], vocab, blocks).contenders();
        counts[i] = (*finds)[i].count();
    }
}

// Copies what was found last, one draw after the other.
void orca_found(const Finds* finds, int64_t* ids, float* scores) {
    for (const Found& found : *finds) {
        ids = std::copy_n(found.ids(), found.count(), ids);
        scores = std::copy_n(found.scores(), found.count(), scores);
    }
}

// What each one's vocabulary weighs.
void orca_weigh(const Draw* draws, int count, int vocab, int blocks, int threads, double* sums) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < count; ++i) sums[i] = Search(draws[i], vocab, blocks).weight();
}

// The ids of the `most` largest logits of each.
void orca_likeliest(const Draw* draws, int count, int vocab, int blocks, int threads, int most, int64_t* ids) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < count; ++i) Search(draws[i], vocab, blocks).likeliest(most, ids + int64_t(i) * most);
}
}
