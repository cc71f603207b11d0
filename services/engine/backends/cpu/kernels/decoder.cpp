// A decoder's layers over a flat batch: the functions that Python calls.

#include <omp.h>

#include <algorithm>

#include "experts.h"
#include "packing.h"
#include "passes.h"
#include "wanted_rows.h"

namespace {

// Runs work(member) in every thread of a team, with the processor's units for bfloat16.
template <class Work>
void together(int wanted, const Work& work) {
    omp_set_dynamic(0);
    const int threads = std::min(wanted, omp_get_thread_limit());
    Team team(threads);
#pragma omp parallel num_threads(threads)
    {
#if defined(HAS_UNITS)
        const Units units;
#endif
        Member member(team);
        work(member);
    }
}

void grow(Numbers& v, size_t size) {
    if (v.size() < size) v.resize(size);
}

// Calls work.template operator()<Input>() with the type of input that a matrix takes.
template <class Work>
void with_input(const Matrix& matrix, const Work& work) {
#if defined(HAS_UNITS)
    if (matrix.kind == WeightKind::BFLOAT16_DOTS || matrix.kind == WeightKind::GROUPS_DOTS)
        return work.template operator()<Bfloat16Input>();
#endif
#if defined(__AMX_BF16__)
    if (matrix.kind == WeightKind::FLOAT32_THIRDS) return work.template operator()<ThirdsInput>();
#endif
    work.template operator()<TiledInput>();
}

// Makes room for slices of up to `rows` rows.
template <class Input>
void prepare(Buffers& buffers, const Model& model, int crews, int rows, int strips = 0) {
    if (int(buffers.inputs.size()) < crews) buffers.inputs.resize(crews);
    for (int crew = 0; crew < crews; ++crew) {
        ProductInputs& inputs = buffers.inputs[crew];
        grow(inputs.narrow, Input::floats(rows, model.hidden));
        grow(inputs.wide, Input::floats(rows, model.widest));
        grow(inputs.low, size_t(rows) * strips * LANES);
        if (model.layers->mlp_post_norm.weight) grow(inputs.change, size_t(rows) * model.hidden);
    }
}

// The steps [first, end) as passes: where each begins, and the end. A pass begins with each step that attends.
std::vector<int> passes_of(int first, int end) {
    std::vector<int> passes{first};
    for (int step = first + 1; step < end; ++step)
        if (step % STEPS == ATTEND) passes.push_back(step);
    passes.push_back(end);
    return passes;
}

template <class Input>
void run_halves(const Model& model, const Batch& batch, int first, int last, float* x, float* partial) {
    const std::vector<int> owners = owners_of(batch);
    std::vector<int> most;  // tokens of a span
    for (const Heads* heads = model.heads; heads < model.heads + model.heads_count; ++heads)
        most.push_back(std::max(1, span_height(*heads, model.cache_kind) / heads->group()));
    // With slices, an expert's weights would be read for each.
    const bool whole = std::any_of(model.layers, model.layers + model.layer_count,
                                   [](const Layer& layer) { return layer.experts.count > 0; });
    const bool both_ways = model.heads->both_ways;
    const std::vector<Slice> slices =
        whole ? std::vector{slice_of(batch, owners.data(), 0, batch.tokens, most)}
              : slices_of(batch, owners.data(), model.threads, Input::SLICES, most, both_ways);
    const int count = int(slices.size());
    Buffers& buffers = *model.buffers;
    const auto lower = [](const Slice& one, const Slice& other) { return one.count < other.count; };
    const int rows = std::max_element(slices.begin(), slices.end(), lower)->count;
    prepare<Input>(buffers, model, count == 1 ? 1 : model.threads, rows, batch.strips);
    grow(buffers.qkv, size_t(batch.tokens) * model.qkv_width);
    const auto step_of = [](int half) { return half / 2 * STEPS + (half % 2 ? FEED_FORWARD : WRITE_KV); };
    std::vector<int> passes = passes_of(step_of(first), step_of(last));
    if (both_ways) passes = {passes.front(), passes.back()};
    float* to = partial ? partial : x;
    // The last layer that has keys may skip the rows whose logits are not wanted.
    const bool only_wanted = !partial && model.vocabulary.panels && last == 2 * model.writing_layers;
    Passes order(count);
    together(model.threads, [&](Member& member) {
        if (count == 1) {
            ProductInputs& inputs = buffers.inputs.front();
            SliceRun<Input, Member> run{model, batch, owners.data(), slices.front(), inputs, member, x, to};
            return run.run(passes.front(), passes.back());
        }
        Alone alone;
        ProductInputs& inputs = buffers.inputs[omp_get_thread_num()];
        const int last_pass = int(passes.size()) - 2;
        order.run(last_pass + 1, [&](int pass, int slice) {
            if (only_wanted && pass && pass == last_pass && !slices[slice].wanted) return;
            SliceRun<Input, Alone> run{model, batch, owners.data(), slices[slice], inputs, alone, x, to};
            run.run(passes[pass], passes[pass + 1]);
        });
    });
}

// Runs halves of layers behind the last one that has keys: over the rows alone whose logits are wanted.
template <class Input>
void run_wanted(const Model& model, const Batch& batch, int first, int last, float* x) {
    const WantedRows wanted(batch);
    const size_t hidden = model.hidden, numbers = size_t(model.layer_count) * model.inputs.numbers;
    if (int(wanted.rows.size()) == batch.tokens) return run_halves<Input>(model, batch, first, last, x, nullptr);
    std::vector<float> some, inputs;
    for (int32_t row : wanted.rows) {
        some.insert(some.end(), x + row * hidden, x + (row + 1) * hidden);
        if (numbers)
            inputs.insert(inputs.end(), batch.layer_inputs + row * numbers, batch.layer_inputs + (row + 1) * numbers);
    }
    if (some.empty()) return;
    run_halves<Input>(model, wanted.of(batch, inputs.data()), first, last, some.data(), nullptr);
    for (size_t i = 0; i < wanted.rows.size(); ++i)
        std::copy_n(some.data() + i * hidden, hidden, x + wanted.rows[i] * hidden);
}

template <class Input>
void run_layers(const Model& model, const Batch& batch, int first, int last, float* x, float* partial) {
    const int behind = 2 * model.writing_layers;
    const bool are_last = !partial && model.vocabulary.panels && last == 2 * model.layer_count;
    if (!are_last || first >= behind || behind == last) return run_halves<Input>(model, batch, first, last, x, partial);
    run_halves<Input>(model, batch, first, behind, x, nullptr);
    run_wanted<Input>(model, batch, behind, last, x);
}

// Writes `layer_inputs` [tokens, all layers, numbers] of a batch, where the embedding's rows are: see InputsOfLayers.
template <class Input>
void find_layer_inputs(const Model& model, const float* x, int tokens, float* inputs) {
    const InputsOfLayers& of = model.inputs;
    const int width = of.projection.outputs;
    const Tiles tiles(tokens);
    Buffers& buffers = *model.buffers;
    if (buffers.inputs.empty()) buffers.inputs.resize(1);
    grow(buffers.inputs.front().narrow, Input::floats(tokens, model.hidden));
    grow(buffers.projected, size_t(tokens) * width);
    const Input rows(buffers.inputs.front().narrow, model.hidden, tiles);
    together(model.threads, [&](Member& member) {
        each_range(member, tokens, 16, [&](int begin, int end) {
            for (int row = begin; row < end; ++row)
                rows.copy(row, 1, 0, x + size_t(row) * model.hidden, 0, model.hidden);
        });
        Product{of.projection, buffers.projected.data(), false}.run(member, rows);
        each_range(member, tokens, 4, [&](int begin, int end) {
            for (size_t at = size_t(begin) * width; at < size_t(end) * width; at += of.numbers) {
                float* own = buffers.projected.data() + at;
                normalise(own, of.numbers, of.norm.weight, of.epsilon);
                for (int i = 0; i < of.numbers; ++i) inputs[at + i] = inputs[at + i] * of.rows_factor + own[i];
            }
        });
    });
}

// See orca_add. Each rank adds all that the layer's inputs give.
template <class Input>
void add_change(const Model& model, const Batch& batch, int half, const float* change, float* x) {
    const Layer& layer = model.layers[half / 2];
    const bool is_mlp = half % 2, more = is_mlp && layer.inputs.gate.panels;
    const Norm& post = is_mlp ? layer.mlp_post_norm : layer.attention_post_norm;
    const Slice all{0, batch.tokens, Tiles(batch.tokens), {}, true, {}, {}};
    if (more) prepare<Input>(*model.buffers, model, 1, all.count);
    together(model.threads, [&](Member& member) {
        add_norms(member, model, post, change, batch.tokens, is_mlp && !more ? layer.scale : 1.0f, x);
        if (!more) return;
        SliceRun<Input, Member> run{model, batch, nullptr, all, model.buffers->inputs.front(), member, x, x};
        run.add_inputs(layer);
    });
}

template <class Input>
void find_logits(const Model& model, const Batch& batch, const int32_t* tokens, int count, float* x, float* logits) {
    Buffers& buffers = *model.buffers;
    const Slice all{0, count, Tiles(count), {}, true, {}, {}};
    prepare<Input>(buffers, model, 1, all.count);
    together(model.threads, [&](Member& member) {
        SliceRun<Input, Member> run{model, batch, nullptr, all, buffers.inputs.front(), member, x, x};
        run.norm(model.last_norm, [&](int row) { return tokens[row]; });
        run.product(model.vocabulary, run.narrow(), logits, false, VOCABULARY);
        if (model.logits_soft_cap > 0) run.cap(logits, count);
    });
}

}  // namespace

extern "C" {

// The units for BFLOAT16_DOTS, "amx" or "avx512_bf16"; "" if the processor has none.
const char* orca_units() { return units(); }

int orca_width() { return WIDTH; }

// The names of WeightKind, in order, separated by spaces.
const char* orca_weight_kinds() { return WEIGHT_KIND_NAMES; }

Buffers* orca_new_buffers() { return new Buffers; }

// Copies the seconds spent in each Phase so far.
void orca_seconds(const Buffers* buffers, double* seconds) { std::copy_n(buffers->seconds, 6, seconds); }

// How many numbers a panel of this kind has.
int orca_panel_size(WeightKind kind, int inputs) {
    if (kind == WeightKind::BFLOAT16_DOTS) return int(panel_size(static_cast<Dotted*>(nullptr), inputs));
    return int(panel_size(static_cast<float*>(nullptr), inputs));
}

void orca_delete_buffers(Buffers* buffers) { delete buffers; }

// Packs weights [outputs, inputs], floats or bfloat16, into panels of `kind`; INT8 with a scale for each column of the
// panels. `gated`: the first half of the outputs are the gates of the second half.
void orca_pack(const void* weights, int bfloat16_weights, int outputs, int inputs, WeightKind kind, int gated,
               int threads, void* panels, float* scales) {
    auto all = [&](auto packing) {
        together(threads, [&](Member& member) {
            member.each(packing.panels(), [&](int panel) {
                if (kind == WeightKind::FLOAT32 || kind == WeightKind::FLOAT32_THIRDS)
                    packing.pack(panel, static_cast<float*>(panels), nullptr);
                if (kind == WeightKind::BFLOAT16) packing.pack(panel, static_cast<Paired*>(panels), nullptr);
                if (kind == WeightKind::INT8) packing.pack(panel, static_cast<int8_t*>(panels), scales);
                if (kind == WeightKind::BFLOAT16_DOTS) packing.pack(panel, static_cast<Dotted*>(panels), nullptr);
            });
        });
    };
    if (bfloat16_weights)
        all(Packing<bfloat16>{static_cast<const bfloat16*>(weights), outputs, inputs, gated != 0});
    else
        all(Packing<float>{static_cast<const float*>(weights), outputs, inputs, gated != 0});
}

// How many bytes a panel of groups has.
int orca_group_panel_size(const Groups* groups, int inputs) { return groups->panel_bytes(inputs); }

// Packs weights in groups into panels of `kind`; see orca_pack and GroupPacking.
void orca_pack_groups(const uint8_t* codes, const float* scales, const float* offsets, const float* of_scales,
                      const float* of_offsets, const Groups* groups, int outputs, int inputs, WeightKind kind, int gated,
                      int threads, uint8_t* panels) {
    const Packing<float> order{nullptr, outputs, inputs, gated != 0};
    const GroupPacking packing{codes,   scales, offsets, {of_scales, of_offsets},
                               *groups, order,  kind == WeightKind::GROUPS_DOTS};
    together(threads, [&](Member& member) {
        member.each(order.panels(), [&](int panel) { packing.pack(panel, panels); });
    });
}

// to [rows, outputs] = x [rows, inputs] times a matrix.
void orca_multiply(const Matrix* matrix, const float* x, int rows, int threads, float* to) {
    with_input(*matrix, [&]<class Input>() {
        const Tiles tiles(rows);
        static thread_local Numbers memory;  // allocating it takes as long as many a product
        grow(memory, Input::floats(rows, matrix->inputs));
        const Input input(memory, matrix->inputs, tiles);
        together(threads, [&](Member& member) {
            each_range(member, rows, 16, [&](int begin, int end) {
                for (int row = begin; row < end; ++row)
                    input.copy(row, 1, 0, x + size_t(row) * matrix->inputs, 0, matrix->inputs);
            });
            Product{*matrix, to, false}.run(member, input);
        });
    });
}

// to [count, inputs] = these outputs of a matrix that is not INT8: rows of an embedding.
void orca_read_outputs(const Matrix* matrix, const int32_t* outputs, int count, int threads, float* to) {
    const auto read = [&](int i) { read_output(*matrix, outputs[i], to + size_t(i) * matrix->inputs); };
    constexpr int FEW = 8;  // take less time than the team needs to begin
    if (count <= FEW) return Alone().each(count, read);
    together(threads, [&](Member& member) { member.each(count, read); });
}

// Runs the halves [first, last) of layers: 2 * layer is attention, 2 * layer + 1 the MLP; if they are parallel,
// 2 * layer is both. x is [tokens, hidden].
// Without `partial` each half adds to x. With it, one half writes there what is to be added together with the other
// ranks' parts.
void orca_run(const Model* model, const Batch* batch, int first, int last, float* x, float* partial) {
    with_input(model->layers->qkv, [&]<class Input>() { run_layers<Input>(*model, *batch, first, last, x, partial); });
}

// Adds to x [tokens, hidden] the `change` that a half of a layer computes: the sum of what the ranks wrote to `partial`.
void orca_add(const Model* model, const Batch* batch, int half, const float* change, float* x) {
    with_input(model->layers->qkv, [&]<class Input>() { add_change<Input>(*model, *batch, half, change, x); });
}

// Makes `inputs` of a batch of the rows of a second embedding in them: see InputsOfLayers. x is [tokens, hidden], before the
// first layer.
void orca_layer_inputs(const Model* model, const float* x, int tokens, float* inputs) {
    with_input(model->inputs.projection, [&]<class Input>() { find_layer_inputs<Input>(*model, x, tokens, inputs); });
}

// Logits [count, vocabulary] after `count` tokens, which are flat indices among batch.logits_after.
void orca_logits(const Model* model, const Batch* batch, const int32_t* tokens, int count, float* x, float* logits) {
    if (!count) return;
    with_input(model->vocabulary,
               [&]<class Input>() { find_logits<Input>(*model, *batch, tokens, count, x, logits); });
}
}
