// Sums of products of 16-bit integers by codes of eight bits, in pairs. They are exact, so their order does not matter,
// and they are the same on every processor.
#pragma once

#include "products.h"

typedef int16_t Shorts __attribute__((vector_size(LANES * 4)));  // pairs
typedef int8_t PairedBytes __attribute__((vector_size(LANES * 2)));
typedef int16_t Narrowed __attribute__((vector_size(LANES * 2)));

// LANES pairs of codes.
inline Ints load_pairs(const int8_t* from) {
#if defined(__AVX512BW__)
    return Ints(_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return Ints(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    PairedBytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return same_bits<Ints>(__builtin_convertvector(bytes, Shorts));
#endif
}

// sum + the sums of the two products of each pair.
inline Ints add_pairs(Ints sum, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
    return Ints(_mm512_dpwssd_epi32(__m512i(sum), __m512i(a), __m512i(b)));
#elif defined(__AVX512BW__)
    return sum + Ints(_mm512_madd_epi16(__m512i(a), __m512i(b)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return sum + Ints(_mm256_madd_epi16(__m256i(a), __m256i(b)));
#else
    return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// The low halves.
inline void store_shorts(int16_t* to, Ints v) {
    const Narrowed narrow = __builtin_convertvector(v, Narrowed);
    std::memcpy(to, &narrow, sizeof narrow);
}

// V vectors of columns of `count` pairs of codes. Meanwhile `soon` is prefetched: V / 2 cache lines for each pair, and
// after `further` bytes the next ones.
template <int V>
struct CodeRun {
    const int8_t* columns[V];
    int count;
    const int8_t* soon[V / 2];
    int further;
};

// sums[R][V] of rows of pairs by the columns of `count` runs, one after another. The next row is STEP pairs further, the
// next pair `along` further in the rows and `step` bytes in the columns.
//
// Not inlined, see sum_products.
template <int R, int V, int STEP>
__attribute__((noinline)) void sum_codes(Ints (&sums)[R][V], const int32_t* rows, int along, const CodeRun<V>* runs,
                                         int count, size_t step) {
    Ints own[R][V] = {};
    for (const CodeRun<V>& run : std::span(runs, count)) {
        const int8_t *columns[V], *soon[V / 2];
        std::copy_n(run.columns, V, columns);
        std::copy_n(run.soon, V / 2, soon);
        for (int k = 0; k < run.count; ++k, rows += along) {
#pragma GCC unroll 4
            for (int v = 0; v < V / 2; ++v) {
                prefetch<0, 2>(soon[v]);
                soon[v] += run.further;
            }
            Ints loaded[V];
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) {
                loaded[v] = load_pairs(columns[v]);
                columns[v] += step;
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const Ints x = rows[r * STEP] - Ints{};
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) own[r][v] = add_pairs(own[r][v], loaded[v], x);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sums[r][v] = own[r][v];
}
