// The elementwise operations between products.
#pragma once

#include <cmath>

#include "model.h"

// Writes the norms of `count` rows, each [hidden], to the rows from `first` on of a product's input.
template <class Input>
inline void normalise(const Model& model, const Norm& norm, const float* const* rows, int count, int first,
                      const Input& to) {
    const int size = model.hidden;
    float means[LANES] = {}, scales[LANES] = {};
    for (int r = 0; r < count; ++r) {
        const float* x = rows[r];
        if (model.layer_norm) {
            for (int i = 0; i < size; ++i) means[r] += x[i];
            means[r] /= size;
        }
        Vector sum = {};
        int i = 0;
        for (; i + LANES <= size; i += LANES) {
            const Vector v = load(x + i) - means[r];
            sum += v * v;
        }
        float squares = total(sum);
        for (; i < size; ++i) squares += (x[i] - means[r]) * (x[i] - means[r]);
        scales[r] = 1.0f / std::sqrt(squares / size + model.epsilon);
    }
    int k = 0;
    for (; k + LANES <= size; k += LANES) {
        Vector square[LANES] = {};
        const Vector weight = load(norm.weight + k), bias = norm.bias ? load(norm.bias + k) : Vector{};
        for (int r = 0; r < count; ++r) square[r] = (load(rows[r] + k) - means[r]) * scales[r] * weight + bias;
        to.set(first, count, k, square, LANES);
    }
    for (; k < size; ++k)
        for (int r = 0; r < count; ++r)
            to.set(first + r, k, (rows[r][k] - means[r]) * scales[r] * norm.weight[k] + (norm.bias ? norm.bias[k] : 0.0f));
}

inline void cap_all(float* x, int count, float cap) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(x + i, soft_capped(load(x + i), cap));
    for (; i < count; ++i) x[i] = soft_capped(broadcast(x[i]), cap)[0];
}

inline void normalise_head(float* x, int dim, const float* weight, float epsilon) {
    float squares = 0;
    for (int i = 0; i < dim; ++i) squares += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(squares / dim + epsilon);
    for (int i = 0; i < dim; ++i) x[i] *= scale * weight[i];
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
