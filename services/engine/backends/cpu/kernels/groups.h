// Weights as codes with a scale for each group of inputs: weight = scale * number + offset, rounded to bfloat16. The
// results are those that a converter would store as bfloat16, so products have the bits of BFLOAT16 and BFLOAT16_DOTS.
#pragma once

#include "codes.h"

// How scales and offsets are kept; packed.py has the same. BYTES: integers, which are multiplied by a float16 of SUPER
// inputs, as the K-quants of GGUF files are stored.
enum class Factors : int32_t { FLOATS, HALVES, BYTES };

constexpr int SUPER = 256;

// How a matrix keeps its groups. A panel is [inputs / size] of them, each with its scales [WIDTH], its offsets [WIDTH]
// (of Coding::OFFSET alone) and its codes [blocks][vectors][LANES][SLOTS]; eight-bit codes are
// [blocks][SLOTS][vectors][LANES], minus 128 if they are centred; E4M3 [blocks][SLOTS * vectors / 4][LANES][4].
// Codes of five and six bits have the order of eight-bit ones, UNIT by UNIT as planes (see `pack_planes`), with the highest
// bit of centred ones inverted.
//
// A block of GROUPS has two vectors, the halves of a panel, and a slot for each of SLOTS depths. One of GROUPS_DOTS has
// four, each of the pairs of depths of 8 columns, and a slot for each of SLOTS pairs. With four bits and on AMX it is 16-bit
// numbers [WIDTH / 8][2][STEP]: each has the codes of four columns at a depth, every second one of eight.
//
// A panel whose factors are BYTES begins with [inputs / SUPER] float16 by which scales are multiplied [WIDTH], and those
// for offsets [WIDTH].
struct Groups {
    int32_t bits;      // of a code: 4, 5, 6 or 8
    int32_t size;      // inputs of a group, a multiple of STEP
    Coding coding;
    Factors factors;
    float book[16];    // of Coding::BOOK

    int number() const { return factors == Factors::FLOATS ? 4 : factors == Factors::HALVES ? 2 : 1; }
    int kinds() const { return coding == Coding::OFFSET ? 2 : 1; }
    int header() const { return WIDTH * number() * kinds(); }
    int bytes() const { return header() + WIDTH * size * bits / 8; }
    int super_bytes() const { return factors == Factors::BYTES ? 2 * WIDTH * kinds() : 0; }
    int panel_bytes(int inputs) const { return inputs / SUPER * super_bytes() + inputs / size * bytes(); }

    // A factor of the scales, for codes that next_codes makes larger.
    template <int BITS, Coding CODING>
    float lessened() const {
        return BITS == 8 && CODING == Coding::CENTRED ? 1.0f / (256 >> bits) : 1.0f;
    }
};

// Some groups of a panel, one after another.
struct GroupRange {
    const uint8_t* panel;
    int inputs, first, count;  // inputs of the panel

    const uint8_t* begin(const Groups& groups) const {
        return panel + inputs / SUPER * groups.super_bytes() + size_t(first) * groups.bytes();
    }
    const uint8_t* super_of(const Groups& groups, int group) const {
        return panel + (first + group) * groups.size / SUPER * groups.super_bytes();
    }
};

// The scales or offsets of half a panel, from column `lane` on.
inline Vector load_factors(const Groups& groups, const uint8_t* from, const uint8_t* super, int lane) {
    from += lane * groups.number();
    if (groups.factors == Factors::BYTES)
        return load(reinterpret_cast<const int8_t*>(from)) * load_half(super + lane * sizeof(_Float16));
    if (groups.factors == Factors::HALVES) return load_half(from);
    return load(reinterpret_cast<const float*>(from));
}

// Whether GROUPS_DOTS of these bits are widened column by column, see columns.h.
constexpr bool by_columns(int bits) {
#if defined(__AMX_BF16__)
    return bits == 4;
#else
    return false;
#endif
}

// What a byte of a block has: a code, and another one in its upper half if codes have four bits.
struct CodeByte {
    struct {
        int column, depth;
    } code, upper;
};

inline CodeByte code_byte(const Groups& groups, bool dotted, int byte) {
    const int vectors = dotted ? 4 : 2;
    int place = byte / 4, slot = byte % 4 * 2;  // a lane of one of the vectors
    if (groups.bits > 4) {
        if (groups.coding == Coding::E4M3) byte = (byte / (4 * LANES) * 4 + byte % 4) * LANES + byte / 4 % LANES;
        place = byte % (vectors * LANES);
        slot = byte / (vectors * LANES);
    }
    if (!dotted) return {{place, slot}, {place, slot + 1}};
    if (!by_columns(groups.bits)) return {{place / 2, 2 * slot + place % 2}, {place / 2, 2 * slot + 2 + place % 2}};
    const int number = byte / 2, column = number / (2 * STEP) * 8 + byte % 2 * 4 + number / STEP % 2;
    return {{column, number % STEP}, {column + 2, number % STEP}};
}

// Calls work.template operator()<bits, coding>(), with 8 for codes of five and six bits.
template <class Work>
inline void with_codes(const Groups& groups, const Work& work) {
    switch (groups.coding) {
        case Coding::OFFSET:
            return groups.bits == 4 ? work.template operator()<4, Coding::OFFSET>() : work.template operator()<8, Coding::OFFSET>();
        case Coding::CENTRED:
            return groups.bits == 4 ? work.template operator()<4, Coding::CENTRED>() : work.template operator()<8, Coding::CENTRED>();
        case Coding::BOOK: return work.template operator()<4, Coding::BOOK>();
        case Coding::E4M3: return work.template operator()<8, Coding::E4M3>();
    }
}

// To the nearest, ties to even. The size of `v` is less than 2^110: packing.py leaves out other weights. Where the processor
// has no such conversion, a difference of numbers 2^16 times as large rounds. Numbers below the least normal one, 2^-126,
// may differ in the last bit: the conversion takes them for 0.
inline Vector rounded_to_bfloat16(Vector v) {
#if defined(__AVX512BF16__)
    const __m256i halves = __m256i(_mm512_cvtneps_pbh(__m512(v)));
    return Vector(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)));
#else
    const Vector rest = v * 65536.0f - v;
    return v * 65536.0f - rest;
#endif
}

constexpr int BYTES_AHEAD = 4096;  // how far before its use a panel is prefetched, also past its end

// Prefetches the share of one slot in a block of BYTES. All lines of a block at once would make the processor wait.
template <int BYTES>
inline void prefetch_ahead(const uint8_t* block, int slot) {
    if (slot * BYTES % (64 * SLOTS) == 0) prefetch<0, 2>(block + BYTES_AHEAD + slot * BYTES / SLOTS);
}

// The codes of the next CODES weights, of eight bits. Those of five and six bits are unpacked to `memory`, centred ones as
// the highest bits of a byte, whose sign is theirs.
template <int BITS, Coding CODING, int CODES>
inline const uint8_t* next_codes(const Groups& groups, const uint8_t*& from, uint8_t* memory) {
    const uint8_t* codes = from;
    if (BITS == 4 || CODING == Coding::E4M3 || groups.bits == 8) {
        from += CODES * BITS / 8;
        return codes;
    }
    constexpr bool HIGH = CODING == Coding::CENTRED;
    for (uint8_t* to = memory; to < memory + CODES; to += UNIT, from += UNIT * groups.bits / 8) {
        if (groups.bits == 6) unpack_planes<6, HIGH ? 2 : 0>(from, to);
        if (groups.bits == 5) unpack_planes<5, HIGH ? 3 : 0>(from, to);
    }
    return memory;
}

// Calls use(half, weights) for each depth in the groups and each half of their panel.
template <int BITS, Coding CODING, class Use>
__attribute__((always_inline)) inline void each_half(const Groups& groups, const GroupRange& range, const Use& use) {
    constexpr int BLOCK_BYTES = 2 * LANES * SLOTS * BITS / 8;
    constexpr bool ADDS = CODING == Coding::OFFSET;
    const Book book(groups.book);
    const uint8_t* from = range.begin(groups);
    alignas(64) uint8_t memory[BITS == 4 ? 1 : UNIT];
    for (int group = 0; group < range.count; ++group) {
        const uint8_t* super = range.super_of(groups, group);
        Vector scales[2], offsets[2] = {};
        for (int half = 0; half < 2; ++half) {
            scales[half] = load_factors(groups, from, super, half * LANES) * groups.lessened<BITS, CODING>();
            if (ADDS)
                offsets[half] = load_factors(groups, from + WIDTH * groups.number(), super + WIDTH * 2, half * LANES);
        }
        from += groups.header();
        for (int k = 0; k < groups.size; k += SLOTS) {
            const uint8_t* ahead = from;
            const uint8_t* codes = next_codes<BITS, CODING, UNIT>(groups, from, memory);
#pragma GCC unroll 8
            for (int slot = 0; slot < SLOTS; ++slot) {
                prefetch_ahead<BLOCK_BYTES>(ahead, slot);
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    const Vector scaled = scales[half] * numbers_of<BITS, CODING, 2>(codes, half, slot, book);
                    use(half, rounded_to_bfloat16(ADDS ? scaled + offsets[half] : scaled));
                }
            }
        }
    }
}

// Writes the weights of groups as floats [depth][WIDTH].
template <int BITS, Coding CODING>
inline void widen_groups(const Groups& groups, const GroupRange& range, float* to) {
    each_half<BITS, CODING>(groups, range, [&](int, Vector weights) __attribute__((always_inline)) {
        store(to, weights);
        to += LANES;
    });
}

#if defined(__AVX512BF16__)

template <int... I>
inline Vector doubled(Vector v, int first, std::integer_sequence<int, I...>) {
    const Ints from = {I / 2 ...};
    return Vector(_mm512_permutexvar_ps(__m512i(from + first), __m512(v)));
}

// Numbers [first, first + 8) of v, each of them twice.
inline Vector doubled(Vector v, int first) { return doubled(v, first, std::make_integer_sequence<int, LANES>()); }

// Calls use(depth, half, columns) for each pair of depths in the groups and each half of their panel; `columns` are the
// pairs of that half, rounded to bfloat16. SPARING: scales and offsets stay in memory.
template <int BITS, Coding CODING, bool SPARING, class Use>
__attribute__((always_inline)) inline void each_pair(const Groups& groups, const GroupRange& range, const Use& use) {
    constexpr int BLOCK_BYTES = WIDTH * STEP * BITS / 8;
    constexpr bool ADDS = CODING == Coding::OFFSET;
    const Book book(groups.book);
    const uint8_t* from = range.begin(groups);
    alignas(64) uint8_t memory[BITS == 4 ? 1 : 2 * UNIT];
    int k = 0;
    for (int group = 0; group < range.count; ++group) {
        const uint8_t* super = range.super_of(groups, group);
        Vector scales[4], offsets[4] = {};
        for (int v = 0; v < 4; ++v) {
            const Vector loaded = load_factors(groups, from, super, v / 2 * LANES);
            scales[v] = doubled(loaded * groups.lessened<BITS, CODING>(), v % 2 * 8);
            if (ADDS)
                offsets[v] = doubled(
                    load_factors(groups, from + WIDTH * groups.number(), super + WIDTH * 2, v / 2 * LANES), v % 2 * 8);
        }
        from += groups.header();
        for (const int end = k + groups.size; k < end;) {
            const uint8_t* ahead = from;
            const uint8_t* codes = next_codes<BITS, CODING, 2 * UNIT>(groups, from, memory);
#pragma GCC unroll 8
            for (int slot = 0; slot < SLOTS; ++slot, k += 2) {
                prefetch_ahead<BLOCK_BYTES>(ahead, slot);
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    if (SPARING) asm volatile("" ::"r"(scales), "r"(offsets) : "memory");  // they may have changed
                    Vector weights[2];
#pragma GCC unroll 2
                    for (int i = 0; i < 2; ++i) {
                        const int v = 2 * half + i;
                        const Vector scaled = scales[v] * numbers_of<BITS, CODING, 4>(codes, v, slot, book);
                        weights[i] = ADDS ? scaled + offsets[v] : scaled;
                    }
                    use(k, half, _mm512_cvtne2ps_pbh(__m512(weights[1]), __m512(weights[0])));
                }
            }
        }
    }
}

#endif
