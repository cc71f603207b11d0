// What becomes of the sums of a product.
#pragma once

#include <algorithm>
#include <cstring>

#include "low_rank.h"
#include "pointwise.h"

// Multiplies a panel's sums by the scales and adds the bias. Sums of columns past the last one are undefined.
inline void finish(const Matrix& m, int panel, Sums sums) {
    const int column = panel * WIDTH;
    const auto vector = [&](const float* numbers, int half) {
        Vector v{};
        const int left = m.outputs - column - half * LANES;
        if (left >= LANES) return load(numbers + column + half * LANES);
        for (int i = 0; i < left; ++i) v[i] = numbers[column + half * LANES + i];
        return v;
    };
    for (int half = 0; half < 2; ++half) {
        if (m.scales) {
            const Vector scales = vector(m.scales, half);
            for (auto& both : sums) both[half] *= scales;
        }
        if (m.bias) {
            const Vector bias = vector(m.bias, half);
            for (auto& both : sums) both[half] += bias;
        }
    }
}

// A product whose rows are written, or added, to `to` [rows, outputs].
struct Product {
    const Matrix& matrix;
    float* to;
    bool add;
    Added added = {};

    template <class Crew, class Input>
    void run(Crew& crew, const Input& rows) const {
        rows.multiply(crew, matrix, *this);
    }

    void operator()(int panel, int row, Sums sums) const {
        finish(matrix, panel, sums);
        added(panel, row, sums);
        float* at = to + size_t(row) * matrix.outputs + panel * WIDTH;
        const int columns = matrix.outputs - panel * WIDTH;
        if (columns < WIDTH)
            put_some(at, columns, sums);
        else if (add)
            put<true>(at, sums);
        else
            put<false>(at, sums);
    }

    void expect(int panel, int row, int count) const {
        for (int r = row; r < row + count; ++r)
            for (int half = 0; half < 2; ++half)
                prefetch<1>(to + size_t(r) * matrix.outputs + panel * WIDTH + half * LANES);
    }

private:
    template <bool ADD>
    void put(float* at, Sums sums) const {
        for (const auto& [first, second] : sums) {
            store(at, ADD ? load(at) + first : first);
            store(at + LANES, ADD ? load(at + LANES) + second : second);
            at += matrix.outputs;
        }
    }

    void put_some(float* at, int columns, Sums sums) const {
        for (size_t r = 0; r < sums.size(); ++r, at += matrix.outputs)
            for (int i = 0; i < columns; ++i) at[i] = (add ? at[i] : 0.0f) + sums[r][i / LANES][i % LANES];
    }
};

// Turns gates and what they multiply into numbers of which SiLU and a product make GPT-OSS's SwiGLU. Constants come
// first, so that NaN stays NaN.
inline void clamp_gated(Sums sums, float alpha, float limit) {
    const Vector most = broadcast(limit), least = broadcast(-limit);
    for (auto& [gate, up] : sums) {
        gate = smaller(most, gate) * alpha;
        up = (smaller(most, larger(least, up)) + 1.0f) * (1.0f / alpha);
    }
}

template <class Input>
inline Vector activate(const Model& model, Vector x) {
    if (model.activation == Activation::SILU) return Input::silu(x);
    if (model.activation == Activation::GELU_ERF) return gelu_erf(x);
    return model.activation == Activation::GELU ? Input::gelu(x) : relu_squared(x);
}

// Turns the sums of an MLP's first product into the input of its second, `depth` numbers a row.
template <class Input>
struct Activated {
    const Model& model;
    const Matrix& up;
    int depth;
    const Input& to;
    Added added = {};

    void operator()(int panel, int row, Sums sums) const {
        finish(up, panel, sums);
        added(panel, row, sums);
        if (model.swiglu_limit > 0) clamp_gated(sums, model.swiglu_alpha, model.swiglu_limit);
        const bool gated = model.gated;
        const int count = int(sums.size());
        for (int half = 0; half < (gated ? 1 : 2); ++half) {
            const int from = gated ? panel * LANES : panel * WIDTH + half * LANES;
            Vector square[LANES] = {};
            for (int r = 0; r < count; ++r) square[r] = gated ? of(sums[r][0]) * sums[r][1] : of(sums[r][half]);
            if (from < depth) to.set(row, count, from, square, std::min(LANES, depth - from));
        }
    }

    Vector of(Vector x) const { return activate<Input>(model, x); }

    void expect(int panel, int row, int) const {
        const int columns = model.gated ? LANES : WIDTH;
        to.expect(row, panel * columns, columns);
    }
};

// Turns the sums of the first product of a layer's inputs into the input of the second one: each number times that of
// the token.
template <class Input>
struct TimesInputs {
    const Model& model;
    const Matrix& gate;
    const float* of_tokens;  // of the first row
    size_t step;             // from one row's to the next row's
    const Input& to;

    void operator()(int panel, int row, Sums sums) const {
        finish(gate, panel, sums);
        for (int half = 0; half < 2; ++half) {
            const int from = panel * WIDTH + half * LANES, some = std::min(LANES, gate.outputs - from);
            if (some <= 0) return;
            Vector square[LANES] = {};
            for (size_t r = 0; r < sums.size(); ++r) {
                Vector factors{};
                std::memcpy(&factors, of_tokens + (row + r) * step + from, some * sizeof(float));
                square[r] = activate<Input>(model, sums[r][half]) * factors;
            }
            to.set(row, int(sums.size()), from, square, some);
        }
    }

    void expect(int, int, int) const {}
};
