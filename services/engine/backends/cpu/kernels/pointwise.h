// The elementwise operations between products.
#pragma once

#include <cmath>

#include "model.h"

// What a norm subtracts from the numbers of a row, and then multiplies them by.
struct Moments {
    float mean, scale;
};

inline Moments moments_of(const float* x, int size, bool layer_norm, float epsilon) {
    float mean = 0;
    if (layer_norm) {
        Vector sum = {};
        int i = 0;
        for (; i + LANES <= size; i += LANES) sum += load(x + i);
        mean = total(sum);
        for (; i < size; ++i) mean += x[i];
        mean /= size;
    }
    Vector sum = {};
    int i = 0;
    for (; i + LANES <= size; i += LANES) {
        const Vector v = load(x + i) - mean;
        sum += v * v;
    }
    float squares = total(sum);
    for (; i < size; ++i) squares += (x[i] - mean) * (x[i] - mean);
    return {mean, 1.0f / std::sqrt(squares / size + epsilon)};
}

// Writes the norms of `count` rows, each [hidden], to the rows from `first` on of a product's input or of x. Without a
// weight, they are the rows themselves.
template <class Rows>
inline void normalise(const Model& model, const Norm& norm, const float* const* rows, int count, int first,
                      const Rows& to) {
    const int size = model.hidden;
    Moments moments[LANES];
    for (int r = 0; r < count; ++r)
        moments[r] = norm.weight ? moments_of(rows[r], size, model.layer_norm, model.epsilon) : Moments{0, 1};
    int k = 0;
    for (; k + LANES <= size; k += LANES) {
        Vector square[LANES] = {};
        const Vector weight = norm.weight ? load(norm.weight + k) : broadcast(1);
        const Vector bias = norm.bias ? load(norm.bias + k) : Vector{};
        for (int r = 0; r < count; ++r)
            square[r] = (load(rows[r] + k) - moments[r].mean) * moments[r].scale * weight + bias;
        to.set(first, count, k, square, LANES);
    }
    for (; k < size; ++k) {
        const float weight = norm.weight ? norm.weight[k] : 1, bias = norm.bias ? norm.bias[k] : 0;
        for (int r = 0; r < count; ++r)
            to.set(first + r, k, (rows[r][k] - moments[r].mean) * moments[r].scale * weight + bias);
    }
}

// Rows of x, to which what they are set to is added. Then they are multiplied by `scale`.
struct Residual {
    float* x;  // [rows, hidden]
    int hidden;
    float scale;

    void set(int row, int count, int at, const Vector (&rows)[LANES], int) const {
        for (int r = 0; r < count; ++r) {
            float* to = x + size_t(row + r) * hidden + at;
            store(to, (load(to) + rows[r]) * scale);
        }
    }

    void set(int row, int at, float change) const {
        float& to = x[size_t(row) * hidden + at];
        to = (to + change) * scale;
    }
};

// Rows of a product's input that also take the place of the rows of x of which they are made.
template <class Input>
struct Replacing {
    const Input& input;
    float* x;  // [rows, hidden]
    int hidden;

    void set(int row, int count, int at, Vector (&rows)[LANES], int n) const {
        for (int r = 0; r < count; ++r) store(x + size_t(row + r) * hidden + at, rows[r]);
        input.set(row, count, at, rows, n);
    }

    void set(int row, int at, float number) const {
        x[size_t(row) * hidden + at] = number;
        input.set(row, at, number);
    }
};

// Adds the norms of `change` [rows, hidden] to x; without a weight, `change` itself. See Residual.
template <class Crew>
inline void add_norms(Crew& crew, const Model& model, const Norm& norm, const float* change, int rows, float scale,
                      float* x) {
    each_range(crew, rows, ROWS, [&](int begin, int end) {
        const float* some[ROWS];
        for (int r = begin; r < end; ++r) some[r - begin] = change + size_t(r) * model.hidden;
        normalise(model, norm, some, end - begin, begin, Residual{x, model.hidden, scale});
    });
}

inline void cap_all(float* x, int count, float cap) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(x + i, soft_capped(load(x + i), cap));
    for (; i < count; ++i) x[i] = soft_capped(broadcast(x[i]), cap)[0];
}

// Normalises numbers in place; without a weight, it divides by their root mean square alone.
inline void normalise(float* x, int size, const float* weight, float epsilon) {
    const float scale = moments_of(x, size, false, epsilon).scale;
    if (!weight)
        for (int i = 0; i < size; ++i) x[i] *= scale;
    else
        for (int i = 0; i < size; ++i) x[i] *= scale * weight[i];
}

inline void rotate(float* x, int dim, const float* cosines, const float* sines) {
    const int half = dim / 2;
    int i = 0;
    for (; i + LANES <= half; i += LANES) {
        const Vector a = load(x + i), b = load(x + i + half), cosine = load(cosines + i), sine = load(sines + i);
        store(x + i, a * cosine - b * sine);
        store(x + i + half, b * cosine + a * sine);
    }
    for (; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = b * cosines[i] + a * sines[i];
    }
}
