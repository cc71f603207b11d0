// Weights as `multiply` reads them.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "group_products.h"

// How many numbers a panel has.
template <class Number>
inline size_t panel_size(const Number*, int inputs) {
    return size_t(inputs) * WIDTH;
}
inline size_t panel_size(const Dotted*, int inputs) { return size_t(whole_steps(inputs)) * WIDTH; }

inline void from_float(int8_t& to, float x) { to = int8_t(std::lrint(x)); }

template <class Source>
struct Packing {
    const Source* weights;  // [outputs, inputs]
    int outputs, inputs;
    bool gated;

    int panels() const { return gated ? (outputs / 2 + LANES - 1) / LANES : (outputs + WIDTH - 1) / WIDTH; }

    // The output in a column of a panel; -1 past the last one.
    int output(int panel, int lane) const {
        if (!gated) return panel * WIDTH + lane < outputs ? panel * WIDTH + lane : -1;
        const int column = panel * LANES + lane % LANES, half = outputs / 2;
        return column >= half ? -1 : lane < LANES ? column : half + column;
    }

    // The index of a number in its panel.
    template <class Number>
    static size_t place(const Number*, int k, int lane) {
        return size_t(k) * WIDTH + lane;
    }
    static size_t place(const Paired*, int k, int lane) {
        return size_t(k) * WIDTH + (lane < LANES ? 2 * lane : 2 * (lane - LANES) + 1);
    }
    static size_t place(const Dotted*, int k, int lane) { return size_t(k / 2) * 2 * WIDTH + 2 * lane + k % 2; }

    template <class Number>
    void pack(int panel, Number* to, float* scales) const {
        to += panel * panel_size(to, inputs);
        float factors[WIDTH];
        const Source* rows[WIDTH];
        for (int lane = 0; lane < WIDTH; ++lane) {
            const int row = output(panel, lane);
            rows[lane] = row < 0 ? nullptr : weights + size_t(row) * inputs;
            factors[lane] = 1.0f;
            if (!scales) continue;
            float most = 0;
            for (int k = 0; rows[lane] && k < inputs; ++k) most = std::max(most, std::abs(to_float(rows[lane][k])));
            scales[panel * WIDTH + lane] = most / 127.0f;
            factors[lane] = most > 0 ? 127.0f / most : 0.0f;
        }
        for (int begin = 0; begin < inputs; begin += 16)  // so that what is written stays in the first-level cache
            for (int lane = 0; lane < WIDTH; ++lane)
                for (int k = begin; k < std::min(begin + 16, inputs); ++k)
                    from_float(to[place(to, k, lane)], rows[lane] ? to_float(rows[lane][k]) * factors[lane] : 0.0f);
    }
};

// Writes the weights of one output as floats. They are not gated, and not INT8.
inline void read_output(const Matrix& matrix, int output, float* to) {
    const auto gather = [&]<class Number>(const Number* panels) {
        panels += output / WIDTH * panel_size(panels, matrix.inputs);
        for (int k = 0; k < matrix.inputs; ++k) to[k] = to_float(panels[Packing<float>::place(panels, k, output % WIDTH)]);
    };
    if (matrix.kind == WeightKind::FLOAT32 || matrix.kind == WeightKind::FLOAT32_THIRDS)
        return gather(static_cast<const float*>(matrix.panels));
    if (matrix.kind == WeightKind::BFLOAT16) return gather(static_cast<const Paired*>(matrix.panels));
    if (matrix.kind == WeightKind::BFLOAT16_DOTS) return gather(static_cast<const Dotted*>(matrix.panels));
    read_grouped_output(matrix, output, to);
}

// Codes [outputs, inputs], and scales and offsets [outputs, inputs / size], as panels of groups. Where these are BYTES, they
// are multiplied by `supers` [outputs, inputs / SUPER], of scales and of offsets.
struct GroupPacking {
    const uint8_t* codes;
    const float *scales, *offsets;
    const float* supers[2];
    Groups groups;
    Packing<float> order;  // of the outputs; its weights are not read
    bool dotted;

    void pack(int panel, uint8_t* to) const {
        const int size = groups.size, count = order.inputs / size, step = dotted ? STEP : SLOTS;
        const bool short_codes = groups.bits == 4;
        const uint8_t flip = groups.coding == Coding::CENTRED && groups.bits > 4 ? 1 << (groups.bits - 1) : 0;
        std::vector<CodeByte> block(WIDTH * step / (short_codes ? 2 : 1));
        std::vector<uint8_t> bytes(block.size());
        for (size_t i = 0; i < block.size(); ++i) block[i] = code_byte(groups, dotted, int(i));
        const std::vector<uint8_t> none(order.inputs, 0);
        const uint8_t* rows[WIDTH];
        for (int lane = 0; lane < WIDTH; ++lane) {
            const int row = order.output(panel, lane);
            rows[lane] = row < 0 ? none.data() : codes + size_t(row) * order.inputs;
        }
        to += size_t(panel) * groups.panel_bytes(order.inputs);
        for (int super = 0; groups.factors == Factors::BYTES && super < order.inputs / SUPER; ++super)
            for (int kind = 0; kind < groups.kinds(); ++kind)
                for (int lane = 0; lane < WIDTH; ++lane, to += sizeof(_Float16)) {
                    const int row = order.output(panel, lane);
                    put(to, _Float16(row < 0 ? 0 : supers[kind][size_t(row) * (order.inputs / SUPER) + super]));
                }
        for (int group = 0; group < count; ++group) {
            for (int lane = 0; lane < WIDTH; ++lane) {
                const int row = order.output(panel, lane);
                const size_t at = size_t(row) * count + group;
                put_factor(to, lane, row < 0 ? 0 : scales[at]);
                if (groups.coding == Coding::OFFSET) put_factor(to, WIDTH + lane, row < 0 ? 0 : offsets[at]);
            }
            to += groups.header();
            for (int k = group * size; k < (group + 1) * size; k += step) {
                for (size_t i = 0; i < block.size(); ++i) {
                    const auto& [code, upper] = block[i];
                    const uint8_t own = rows[code.column][k + code.depth];
                    bytes[i] = short_codes ? own | rows[upper.column][k + upper.depth] << 4 : own ^ flip;
                }
                if (short_codes || groups.bits == 8)
                    to = std::copy(bytes.begin(), bytes.end(), to);
                else
                    for (size_t i = 0; i < block.size(); i += UNIT, to += UNIT * groups.bits / 8)
                        pack_planes(bytes.data() + i, groups.bits, to);
            }
        }
    }

private:
    template <class Number>
    static void put(uint8_t* to, Number x) {
        std::memcpy(to, &x, sizeof x);
    }

    void put_factor(uint8_t* to, int at, float x) const {
        to += at * groups.number();
        if (groups.factors == Factors::BYTES) return put(to, int8_t(x));
        if (groups.factors == Factors::HALVES) return put(to, _Float16(x));
        put(to, x);
    }
};
