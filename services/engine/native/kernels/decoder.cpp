// A decoder's layers over a flat batch: what Python calls.

#include <omp.h>

#include <algorithm>

#include "layers.h"
#include "packing.h"

namespace {

std::vector<int> owners_of(const Batch& batch) {
    std::vector<int> owners(batch.tokens);
    for (int r = 0; r < batch.requests; ++r) std::fill(owners.begin() + batch.starts[r], owners.begin() + batch.starts[r + 1], r);
    return owners;
}

// Runs work(team) in every thread. The team must not wait for threads that OpenMP would not give it.
template <class Work>
void together(int wanted, const Work& work) {
    omp_set_dynamic(0);
    const int threads = std::min(wanted, omp_get_thread_limit());
    Team team(threads);
#pragma omp parallel num_threads(threads)
    work(team);
}

void grow(Numbers& v, size_t size) {
    if (v.size() < size) v.resize(size);
}

size_t padded(int rows) { return size_t(Tiles(rows).tiles) * ROWS; }

}  // namespace

extern "C" {

int orca_width() { return WIDTH; }

Buffers* orca_new_buffers() { return new Buffers; }

// Copies the seconds spent in each Phase so far.
void orca_seconds(const Buffers* buffers, double* seconds) { std::copy_n(buffers->seconds, 6, seconds); }

void orca_delete_buffers(Buffers* buffers) { delete buffers; }

// Packs weights [outputs, inputs], floats or bfloat16, into panels of `kind`; of int8 with one scale for each of the
// panels' columns. `gated`: outputs are gates and then as many that they let through.
void orca_pack(const void* weights, int bfloat16_weights, int outputs, int inputs, int kind, int gated, int threads,
               void* panels, float* scales) {
    auto all = [&](auto packing) {
        together(threads, [&](Team& team) {
            team.each(packing.panels(), [&](int panel) {
                if (kind == 0) packing.pack(panel, static_cast<float*>(panels), nullptr);
                if (kind == 1) packing.pack(panel, static_cast<bfloat16*>(panels), nullptr);
                if (kind == 2) packing.pack(panel, static_cast<int8_t*>(panels), scales);
            });
        });
    };
    if (bfloat16_weights)
        all(Packing<bfloat16>{static_cast<const bfloat16*>(weights), outputs, inputs, gated != 0});
    else
        all(Packing<float>{static_cast<const float*>(weights), outputs, inputs, gated != 0});
}

// to [rows, outputs] = x [rows, inputs] times a matrix.
void orca_multiply(const Matrix* matrix, const float* x, int rows, int threads, float* to) {
    const Tiles tiles(rows);
    Numbers packed(padded(rows) * matrix->inputs);
    together(threads, [&](Team& team) {
        team.ranges(rows, 16, [&](int begin, int end) {
            for (int row = begin; row < end; ++row)
                for (int k = 0; k < matrix->inputs; ++k)
                    packed[tiles.at(row, matrix->inputs) + size_t(k) * ROWS] = x[size_t(row) * matrix->inputs + k];
        });
        Product{*matrix, to, false}.run(team, packed.data(), rows);
    });
}

// Runs the halves [first, last) of layers: 2 * layer is attention, 2 * layer + 1 the MLP. x is [tokens, hidden]. Without
// `partial` each adds to x; with it, one half writes what is to be added, after the other ranks' has been.
void orca_run(const Model* model, const Batch* batch, int first, int last, float* x, float* partial) {
    Buffers& buffers = *model->buffers;
    const Heads& heads = model->heads;
    grow(buffers.qkv, size_t(batch->tokens) * (heads.queries + 2 * heads.keys) * heads.dim);
    grow(buffers.packed, padded(batch->tokens) * model->hidden);
    grow(buffers.next, padded(batch->tokens) * std::max(heads.queries * heads.dim, model->intermediate));
    const std::vector<Span> spans = spans_of(*batch, model->heads);
    const std::vector<int> owners = owners_of(*batch);
    together(model->threads, [&](Team& team) {
        Call call{*model, *batch, buffers, team, Tiles(batch->tokens)};
        for (int half = first; half < last; ++half) {
            const Layer& layer = model->layers[half / 2];
            if (half % 2)
                call.mlp_half(layer, x, partial ? partial : x, !partial);
            else
                call.attention_half(layer, x, partial ? partial : x, !partial, spans, owners);
        }
    });
}

// Logits [samples, vocabulary] after the tokens of batch.ends.
void orca_logits(const Model* model, const Batch* batch, const float* x, float* logits) {
    const int rows = batch->samples;
    if (!rows) return;
    Buffers& buffers = *model->buffers;
    grow(buffers.packed, padded(rows) * model->hidden);
    together(model->threads, [&](Team& team) {
        Call call{*model, *batch, buffers, team, Tiles(rows)};
        call.norm(model->last_norm, x, buffers.packed.data(), [&](int row) { return batch->ends[row]; });
        call.product(model->vocabulary, buffers.packed.data(), rows, logits, false, VOCABULARY);
    });
}
}
