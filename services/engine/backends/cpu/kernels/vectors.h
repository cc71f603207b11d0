// Vectors of floats as wide as the processor's, and numbers that are stored in fewer bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Registers hold ROWS * 2 sums, 2 weights and 1 activation; or FEW * 4, 4 and 1; or FEWEST * 8, 8 and 1.
#if defined(__AVX512F__)
constexpr int LANES = 16, ROWS = 14, FEW = 6, FEWEST = 2;  // of 32 registers
#elif defined(__AVX__)
constexpr int LANES = 8, ROWS = 6, FEW = 2, FEWEST = 0;  // of 16 registers
#else
constexpr int LANES = 4, ROWS = 4, FEW = 2, FEWEST = 0;
#endif
static_assert(ROWS <= LANES, "tiles are transposed as squares of LANES");
constexpr int WIDTH = 2 * LANES;  // columns of a panel

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Naturals __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

struct bfloat16 {
    uint16_t bits;
};

// Numbers of two vectors, interleaved.
struct Paired : bfloat16 {};

// Asks for a cache line: to write to it, if WRITE; in the second-level cache, if LOCALITY is 2. Because of the empty
// statement the compiler keeps functions that do nothing else, which it otherwise takes for functions without an effect
// and leaves out.
template <int WRITE = 0, int LOCALITY = 3>
__attribute__((always_inline)) inline void prefetch(const void* line) {
    __builtin_prefetch(line, WRITE, LOCALITY);
    asm volatile("");
}

template <class To, class From>
inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

inline Vector broadcast(float x) { return x - Vector{}; }

template <int... I>
inline Vector numbers(std::integer_sequence<int, I...>) {
    return Vector{float(I)...};
}

// 0, 1, 2, ...
inline Vector numbers() { return numbers(std::make_integer_sequence<int, LANES>()); }

inline Vector load(const float* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// The compiler splits the general form of these conversions into single numbers.
inline Vector load(const bfloat16* from) {
#if defined(__AVX512F__)
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return Vector(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)));
#elif defined(__AVX2__)
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return Vector(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)));
#else
    Halves v;
    std::memcpy(&v, from, sizeof v);
    return same_bits<Vector>(__builtin_convertvector(v, Ints) << 16);
#endif
}

inline Vector load(const int8_t* from) {
#if defined(__AVX512F__)
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return Vector(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return Vector(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
#else
    Bytes v;
    std::memcpy(&v, from, sizeof v);
    return __builtin_convertvector(v, Vector);
#endif
}

template <class Number>
inline void load_two(const Number* first, const Number* second, Vector& a, Vector& b) {
    a = load(first);
    b = load(second);
}

// Half as many instructions on the multiplying units as for two separate vectors.
inline void load_two(const Paired* both, const Paired*, Vector& a, Vector& b) {
    Ints v;
    std::memcpy(&v, both, sizeof v);
    a = same_bits<Vector>(v << 16);
    b = same_bits<Vector>(v & int32_t(0xFFFF0000));
}

inline void store(float* to, Vector v) { std::memcpy(to, &v, sizeof v); }

inline float to_float(float x) { return x; }
inline float to_float(int8_t x) { return x; }
inline float to_float(bfloat16 x) { return same_bits<float>(uint32_t(x.bits) << 16); }

inline void from_float(float& to, float x) { to = x; }
inline void from_float(bfloat16& to, float x) {  // to the nearest, ties to even; NaN stays NaN
    uint32_t bits = same_bits<uint32_t>(x);
    to.bits = x != x ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

template <int HALF, int... I>
inline void swap_blocks(Vector (&rows)[LANES], std::integer_sequence<int, I...>) {
    constexpr Ints low = {(I & HALF ? LANES + (I ^ HALF) : I)...};
    constexpr Ints high = {(I & HALF ? LANES + I : I ^ HALF)...};
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) {
        if (i & HALF) continue;
        const Vector a = rows[i], b = rows[i + HALF];
        rows[i] = __builtin_shuffle(a, b, low);
        rows[i + HALF] = __builtin_shuffle(a, b, high);
    }
}

// Transposes LANES vectors, by blocks of 1, 2, 4, ... numbers.
template <int HALF = 1>
inline void transpose(Vector (&rows)[LANES]) {
    swap_blocks<HALF>(rows, std::make_integer_sequence<int, LANES>());
    if constexpr (HALF * 2 < LANES) transpose<HALF * 2>(rows);
}

// Stores the first `count` numbers of v.
inline void store_some(float* to, Vector v, int count) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, __mmask16((1 << count) - 1), __m512(v));
#elif defined(__AVX2__)
    const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    _mm256_maskstore_ps(to, __m256i(lanes < count), __m256(v));
#else
    std::memcpy(to, &v, count * sizeof(float));
#endif
}

#if defined(__AVX512BF16__)
inline void store_some(bfloat16* to, Vector v, int count) {
    const __m256bh halves = _mm512_cvtneps_pbh(__m512(v));
    _mm256_mask_storeu_epi16(to, __mmask16((1 << count) - 1), (__m256i)halves);
}
#endif

// Writes `count` depths of a tile [depth][height] from vectors of `height` rows.
inline void store_transposed(float* to, Vector (&rows)[LANES], int height, int count) {
    if (height == 1) return store_some(to, rows[0], count);
    transpose(rows);
    for (int k = 0; k < count; ++k) store_some(to + k * height, rows[k], height);
}

template <int... I>
inline Vector halves_swapped(Vector v, int half, std::integer_sequence<int, I...>) {
    const Ints to = {I...};
    return __builtin_shuffle(v, to ^ half);
}

// b if either is NaN. The compiler makes two instructions of the general form.
#if defined(__AVX512F__)
inline Vector larger(Vector a, Vector b) { return Vector(_mm512_max_ps(__m512(a), __m512(b))); }
inline Vector smaller(Vector a, Vector b) { return Vector(_mm512_min_ps(__m512(a), __m512(b))); }
#else
inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }
inline Vector smaller(Vector a, Vector b) { return a < b ? a : b; }
#endif

// A bit for each lane of a comparison that is true.
inline uint32_t bits_of(Ints truths) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask(__m512i(truths));
#else
    uint32_t bits = 0;
    for (int i = 0; i < LANES; ++i) bits |= uint32_t(truths[i] != 0) << i;
    return bits;
#endif
}

// Stores the lanes that have a bit, one after another. A whole vector is overwritten.
template <class Lanes>
inline void store_those(void* to, Lanes v, uint32_t bits) {
#if defined(__AVX512F__)
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(__mmask16(bits), same_bits<__m512i>(v)));
#else
    Lanes those{};
    for (int count = 0; bits; bits &= bits - 1) those[count++] = v[__builtin_ctz(bits)];
    std::memcpy(to, &those, sizeof those);
#endif
}

// The sum of all lanes, folded in halves.
inline float total(Vector v) {
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2) v += halves_swapped(v, half, std::make_integer_sequence<int, LANES>());
    return v[0];
}

inline float highest(Vector v) {
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2)
        v = larger(v, halves_swapped(v, half, std::make_integer_sequence<int, LANES>()));
    return v[0];
}
