// Candidates, weights and likeliest tokens of many draws: the functions that Python calls.

#include "candidates.h"
#include "masks.h"

using Finds = std::vector<std::vector<Candidate>>;

extern "C" {

Finds* orca_new_finds() { return new Finds; }

void orca_delete_finds(Finds* finds) { delete finds; }

// Finds the candidates of `count` draws from vocabularies of this size; writes how many each draw has to `counts`.
void orca_search(Finds* finds, const Draw* draws, int count, int vocab, int threads, int64_t* counts) {
    finds->resize(count);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < count; ++i) {
        (*finds)[i] = Candidates(draws[i], vocab).find();
        counts[i] = (*finds)[i].size();
    }
}

// Copies what was found last, one draw after another.
void orca_found(const Finds* finds, int64_t* ids, float* scores) {
    for (const std::vector<Candidate>& found : *finds)
        for (const Candidate& one : found) *ids++ = one.id, *scores++ = one.score;
}

// The weight of each draw's whole vocabulary.
void orca_weigh(const Draw* draws, int count, int vocab, int threads, double* sums) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < count; ++i) sums[i] = Search(draws[i], vocab).weight(-INFINITY, INFINITY);
}

// Copies these rows of `logits` [.., vocab] to `masked` [count, vocab], -inf where the row of `masks` [count, words] has
// no bit, and writes the maxima of their chunks [count, chunks].
void orca_mask(const float* logits, const int64_t* rows, const uint32_t* masks, int count, int vocab, int words,
               int threads, float* masked, float* maxima) {
    const int chunks = (vocab + CHUNK - 1) / CHUNK;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < count; ++i) {
        float* row = masked + int64_t(i) * vocab;
        mask(logits + rows[i] * vocab, masks + int64_t(i) * words, vocab, row);
        chunk_maxima(row, vocab, maxima + int64_t(i) * chunks);
    }
}

// The tokens with the `most` largest logits of each.
void orca_likeliest(const Draw* draws, int count, int vocab, int threads, int most, int64_t* ids) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < count; ++i) Search(draws[i], vocab).likeliest(most, ids + int64_t(i) * most);
}
}
