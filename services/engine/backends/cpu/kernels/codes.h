// The codes of weights in groups, and the numbers that they stand for.
#pragma once

#include <algorithm>

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

// Codes of five or six bits are kept as two planes: nibbles [UNIT / 2], and the bits above them. Of a byte of the first,
// the halves are codes of two parts; of one of the second, pairs of bits are codes of four parts, and of codes of five
// bits each bit is one.
constexpr int UNIT = WIDTH * SLOTS, PART = UNIT / 4;

// Writes UNIT codes of a byte each as planes.
inline void pack_planes(const uint8_t* codes, int bits, uint8_t* to) {
    uint8_t above[PART];
    for (int i = 0; i < PART; ++i) {
        const uint8_t of[] = {codes[i], codes[i + PART], codes[i + 2 * PART], codes[i + 3 * PART]};
        to[i] = (of[0] & 15) | of[1] << 4;
        to[i + PART] = (of[2] & 15) | of[3] << 4;
        above[i] = of[0] >> 4 | of[1] >> 4 << 2 | of[2] >> 4 << 4 | of[3] >> 4 << 6;
    }
    to += UNIT / 2;
    if (bits == 6)
        std::copy(above, above + PART, to);
    else
        for (int i = 0; i < PART / 2; ++i) to[i] = above[i] | above[i + PART / 2] << 1;
}

// The bits above the nibbles: of six bits, 2 * part and the next are those of a part; of five, 2 * part + 1.
template <int BITS>
inline Naturals load_above(const uint8_t* from) {
    Naturals above;
    if (BITS == 6) {
        std::memcpy(&above, from, sizeof above);
        return above;
    }
#if defined(__AVX512F__)
    const __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return Naturals(_mm512_mask_add_epi32(twice, 0x00FF, twice, twice));
#elif defined(__AVX2__)
    above = Naturals(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    for (int half = 0; half < 2; ++half)
        std::memcpy(reinterpret_cast<char*>(&above) + half * PART / 2, from, PART / 2);
#endif
    Naturals first = {};
    for (int lane = 0; lane < LANES / 2; ++lane) first[lane] = ~0u;
    return above + (above & first);
}

// The reverse of pack_planes. LEFT: how many bits are to stand below each code in its byte.
template <int BITS, int LEFT>
inline void unpack_planes(const uint8_t* from, uint8_t* codes) {
    constexpr uint32_t LOWER = 0x0F0F0F0F << LEFT, UPPER = (BITS == 6 ? 0x30303030 : 0x10101010) << LEFT;
    Naturals nibbles[2];
    std::memcpy(nibbles, from, sizeof nibbles);
    const Naturals above = load_above<BITS>(from + sizeof nibbles);
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
        const int lower = LEFT - part % 2 * 4, upper = LEFT + (BITS == 6 ? 4 : 3) - 2 * part;
        const Naturals low = lower > 0 ? nibbles[part / 2] << lower : nibbles[part / 2] >> -lower;
        const Naturals high = upper > 0 ? above << upper : above >> -upper;
        const Naturals both = (low & LOWER) | (high & UPPER);
        std::memcpy(codes + part * PART, &both, sizeof both);
    }
}

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
