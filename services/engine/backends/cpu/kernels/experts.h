// A layer of experts. Threads share the whole batch: each expert's weights are read once, for all of its rows together,
// and weights of experts that no token goes to are not read.
//
// A token's experts, their shares and the order in which their outputs are added (best first) depend on the token
// alone, and products on the row alone, so bits do not depend on the batch.
#pragma once

#include "layers.h"

// One of several parts of a product, with the interface of a crew.
struct Part {
    int index, parts;

    template <class Work>
    void each(int count, Work work) {
        const int end = int(int64_t(count) * (index + 1) / parts);
        for (int item = int(int64_t(count) * index / parts); item < end; ++item) work(item);
    }
    int size() const { return parts; }
};

// Writes the rows of an expert's last product to their places in `to`.
struct ToPlaces {
    const Matrix& down;
    const int* places;
    float* to;

    void operator()(int panel, int row, Sums sums) const {
        finish(down, panel, sums);
        const int left = down.outputs - panel * WIDTH;
        for (size_t r = 0; r < sums.size(); ++r) {
            float* at = to + size_t(places[row + r]) * down.outputs + panel * WIDTH;
            store_some(at, sums[r][0], std::min(left, LANES));
            if (left > LANES) store_some(at + LANES, sums[r][1], std::min(left - LANES, LANES));
        }
    }

    void expect(int, int, int) const {}
};

// Adds the rows of a product to `to`, times the sigmoid of a logit of each.
struct AddShared {
    const Matrix& down;
    const float* logits;  // `step` numbers apart
    int step;
    float* to;
    Added added;

    void operator()(int panel, int row, Sums sums) const {
        finish(down, panel, sums);
        added(panel, row, sums);
        for (size_t r = 0; r < sums.size(); ++r) {
            const float share = 1.0f / (1.0f + std::exp(-logits[(row + r) * step]));
            for (int half = 0; half < 2; ++half) {
                const int column = panel * WIDTH + half * LANES;
                float* at = to + (row + r) * down.outputs + column;
                const Vector change = share * sums[r][half];
                if (column + LANES <= down.outputs) {
                    store(at, load(at) + change);
                    continue;
                }
                for (int i = 0; column + i < down.outputs; ++i) at[i] += change[i];
            }
        }
    }

    void expect(int, int, int) const {}
};

// The experts' half of a layer, instead of an MLP.
template <class Input, class Crew>
struct ExpertsRun {
    SliceRun<Input, Crew>& run;  // of the whole batch
    const Layer& layer;
    const Experts& experts = layer.experts;
    Routing& routing = run.model.buffers->routing;
    Crew& crew = run.crew;

    void operator()() {
        run.norm(layer.mlp_norm, [](int row) { return row; });
        choose_all();
        gather();
        run.done(NORMS);
        multiply_all();
        add_all();
        if (layer.up.panels) add_shared();
        run.done(MLP);
    }

private:
    int tokens() const { return run.slice.count; }
    Input rows(const ExpertRows& group) const {
        return {routing.rows.data() + group.rows, experts.up->inputs, group.tiles};
    }
    Input inner(const ExpertRows& group) const {
        return {routing.inner.data() + group.inner, experts.down->inputs, group.tiles};
    }

    void choose_all() {
        crew.each(1, [&](int) { routing.begin(experts, tokens()); });
        run.product(experts.router, run.narrow(), routing.logits.data(), false, MLP);
        each_range(crew, tokens(), 4, [&](int begin, int end) {
            for (int token = begin; token < end; ++token) {
                const size_t first = size_t(token) * experts.chosen;
                choose(experts, routing.logits.data() + size_t(token) * experts.router.outputs, routing.chosen.data() + first,
                       routing.shares.data() + first);
            }
        });
        crew.each(1, [&](int) { routing.template arrange<Input>(experts, crew.size()); });
        run.done(MLP);
    }

    // Normalising a row again takes no longer than copying it, which would need it in another layout.
    void gather() {
        crew.each(int(routing.tiles.size()), [&](int item) {
            const auto [index, tile, _] = routing.tiles[item];
            const ExpertRows& group = routing.groups[index];
            const int first = tile * group.tiles.height, count = group.tiles.rows_of(tile);
            const float* from[ROWS];
            for (int r = 0; r < count; ++r)
                from[r] = run.x + size_t(group.places[first + r] / experts.chosen) * run.model.hidden;
            normalise(run.model, layer.mlp_norm, from, count, first, rows(group));
        });
    }

    void multiply_all() {
        const Model& model = run.model;
        each_part([&](const ExpertRows& group, Part part) {
            const Matrix &up = experts.up[group.expert], &down = experts.down[group.expert];
            const Input to = inner(group);
            const Activated<Input> activated{model, up, down.inputs, to};
            rows(group).multiply(part, up, activated);
        });
        each_part([&](const ExpertRows& group, Part part) {
            const Matrix& down = experts.down[group.expert];
            inner(group).multiply(part, down, ToPlaces{down, group.places, routing.outputs.data()});
        });
    }

    template <class Work>
    void each_part(const Work& work) {
        crew.each(int(routing.parts.size()), [&](int item) {
            const auto [index, part, parts] = routing.parts[item];
            work(routing.groups[index], Part{part, parts});
        });
    }

    // Adds what the MLP computes that all tokens go through.
    void add_shared() {
        const Input inner = run.activated(layer);
        const Added changes = run.added(layer, CHANGED_DOWN, inner, layer.down.inputs);
        if (!experts.has_shared_gate()) return run.product(layer.down, inner, run.to, true, MLP, changes);
        const float* logits = routing.logits.data() + experts.count;
        inner.multiply(crew, layer.down, AddShared{layer.down, logits, experts.router.outputs, run.to, changes});
    }

    // Adds each token's outputs, best first, and the sum to x; to other memory than x, the sum is written.
    void add_all() {
        const int hidden = run.model.hidden;
        crew.each(tokens(), [&](int token) {
            const size_t first = size_t(token) * experts.chosen;
            const float *shares = routing.shares.data() + first, *outputs = routing.outputs.data() + first * hidden;
            float* to = run.to + size_t(token) * hidden;
            const bool add = run.to == run.x;
            int i = 0;
            for (; i + LANES <= hidden; i += LANES) {
                Vector sum = {};
                for (int rank = 0; rank < experts.chosen; ++rank) sum += shares[rank] * load(outputs + rank * hidden + i);
                store(to + i, add ? load(to + i) + sum : sum);
            }
            for (; i < hidden; ++i) {
                float sum = 0;
                for (int rank = 0; rank < experts.chosen; ++rank) sum += shares[rank] * outputs[rank * hidden + i];
                to[i] = add ? to[i] + sum : sum;
            }
        });
    }
};

template <class Input, class Crew>
void run_experts(SliceRun<Input, Crew>& run, const Layer& layer) {
    ExpertsRun<Input, Crew>{run, layer}();
}
