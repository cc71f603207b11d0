// The codes of weights in groups, and the numbers that they stand for.
#pragma once

#include "vectors.h"

constexpr int SLOTS = 8;         // a block has so many codes for each lane of its vectors
constexpr int STEP = 2 * SLOTS;  // groups are multiples of it

// What codes stand for; packed.py has the same. OFFSET: themselves. CENTRED: the code minus 2^(bits - 1). BOOK: a number
// of a book, by codes of four bits. E4M3: 2^-120 times the float whose eight bits the code is, which must not be NaN.
//
// Only with OFFSET have groups offsets.
enum class Coding : int32_t { OFFSET, CENTRED, BOOK, E4M3 };

typedef _Float16 Float16s __attribute__((vector_size(LANES * 2)));

inline Vector load_half(const void* from) {
#if defined(__AVX512F__)
    return Vector(_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from))));
#elif defined(__F16C__) && defined(__AVX2__)
    return Vector(_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from))));
#else
    Float16s v;
    std::memcpy(&v, from, sizeof v);
    return __builtin_convertvector(v, Vector);
#endif
}

inline Vector load(const uint8_t* from) {
#if defined(__AVX512F__)
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return Vector(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return Vector(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)));
#else
    typedef uint8_t Unsigned __attribute__((vector_size(LANES)));
    Unsigned v;
    std::memcpy(&v, from, sizeof v);
    return __builtin_convertvector(v, Vector);
#endif
}

// One of four floats of eight bits in each number, times 2^-120: their bits, moved to where a float32 has them. Products
// with the least of them are slower on some processors, but few weights are so small beside the largest.
inline Vector e4m3(Ints four, int which) { return same_bits<Vector>(four << 8 * (3 - which) >> 4 & int32_t(0x87F00000)); }

// The numbers of a book, by the lowest four bits of each index.
struct Book {
#if defined(__AVX512F__)
    Vector all;

    explicit Book(const float* from) : all(load(from)) {}
    Vector operator()(Ints index) const { return Vector(_mm512_permutexvar_ps(__m512i(index), __m512(all))); }
#elif defined(__AVX2__)
    Vector low, high;

    explicit Book(const float* from) : low(load(from)), high(load(from + LANES)) {}
    Vector operator()(Ints index) const {
        const __m256 below = _mm256_permutevar8x32_ps(__m256(low), __m256i(index));
        const __m256 above = _mm256_permutevar8x32_ps(__m256(high), __m256i(index));
        return Vector(_mm256_blendv_ps(below, above, __m256(index << 28)));  // by the highest bit
    }
#else
    const float* all;

    explicit Book(const float* from) : all(from) {}
    Vector operator()(Ints index) const {
        Vector found;
        for (int lane = 0; lane < LANES; ++lane) found[lane] = all[index[lane] & 15];
        return found;
    }
#endif
};

// The numbers in a slot of a block's vector, of which there are VECTORS.
template <int BITS, Coding CODING, int VECTORS>
inline Vector numbers_of(const uint8_t* block, int vector, int slot, const Book& book) {
    Ints packed;
    if constexpr (CODING == Coding::E4M3) {
        const int place = slot * VECTORS + vector;
        std::memcpy(&packed, block + place / 4 * sizeof packed, sizeof packed);
        return e4m3(packed, place % 4);
    }
    if constexpr (BITS == 8) {
        const uint8_t* from = block + (slot * VECTORS + vector) * LANES;
        return CODING == Coding::CENTRED ? load(reinterpret_cast<const int8_t*>(from)) : load(from);
    }
    std::memcpy(&packed, block + vector * sizeof packed, sizeof packed);
    packed >>= 4 * slot;
    if (CODING == Coding::BOOK) return book(packed);
    constexpr float CENTRE = CODING == Coding::CENTRED ? 1 << (BITS - 1) : 0;
#if defined(__AVX512F__)
    return Vector(_mm512_permutexvar_ps(__m512i(packed), __m512(numbers() - CENTRE)));  // of an index, four bits count
#else
    return __builtin_convertvector(packed & 15, Vector) - CENTRE;
#endif
}
