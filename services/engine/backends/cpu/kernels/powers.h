// Exponentials of vectors, and the activations that use them.
#pragma once

#include "vectors.h"

// e^x to 2 units in the last place; 0 below the smallest normal number, finite above the largest, NaN of NaN.
inline Vector exponential(Vector x) {
    const Vector low = broadcast(-87.33654f), magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds
    Vector bounded = smaller(broadcast(88.37626f), larger(low, x));
    Vector shifted = bounded * 1.44269504f + magic;
    Vector whole = shifted - magic;
    Vector rest = bounded - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    Vector p = rest * 1.9875691500e-4f + 1.3981999507e-3f;  // Cephes' expf
    p = p * rest + 8.3334519073e-3f;
    p = p * rest + 4.1665795894e-2f;
    p = p * rest + 1.6666665459e-1f;
    p = p * rest + 5.0000001201e-1f;
    p = p * (rest * rest) + rest + 1.0f;
#if defined(__AVX512F__)
    const __mmask16 normal = _mm512_cmp_ps_mask(__m512(x), __m512(low), _CMP_NLT_UQ);
    return Vector(_mm512_maskz_scalef_ps(normal, __m512(p), __m512(whole)));
#else
    Ints power = same_bits<Ints>(shifted) << 23;
    Vector result = same_bits<Vector>(same_bits<Ints>(p) + power);
    return x < low ? Vector{} : x != x ? x : result;
#endif
}

inline Vector silu(Vector x) { return x / (1.0f + exponential(-x)); }

inline Vector gelu(Vector x) {  // the tanh form, as in GPT-2
    const Vector u = 0.7978845608f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (2.0f - 2.0f / (exponential(2.0f * u) + 1.0f));
}

// x times the normal distribution's share below x, to float32's precision (Abramowitz and Stegun, 7.1.26).
inline Vector gelu_erf(Vector x) {
    const Vector size = larger(x, -x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * size);
    const Vector p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    const Vector beyond = 0.5f * x * p * exponential(-size * size);  // x times the share beyond |x|
    return x > 0.0f ? x - beyond : beyond;
}

inline Vector relu_squared(Vector x) {
    const Vector positive = larger(Vector{}, x);  // 0 comes first, so that NaN stays NaN
    return positive * positive;
}

inline Vector hyperbolic_tangent(Vector x) {
    const Vector square = x * x, bounded = smaller(broadcast(9.1f), larger(broadcast(-9.1f), x));
    Vector p = square * -5.70498872745e-3f + 2.06390887954e-2f;  // Cephes' tanhf
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    const Vector near = p * square * x + x, far = 1.0f - 2.0f / (exponential(2.0f * bounded) + 1.0f);
    return (x != x) | (square < 0.390625f) ? near : far;
}

inline Vector soft_capped(Vector x, float cap) { return cap * hyperbolic_tangent(x * (1.0f / cap)); }

// The same for the sums of a product.
template <size_t R, size_t V>
inline void soft_cap(Vector (&sums)[R][V], float cap) {
    for (auto& row : sums)
        for (Vector& v : row) v = soft_capped(v, cap);
}

#if defined(__AVX512F__)
// 2^x with a relative error of 2^-13, which is less than bfloat16 rounds: 2^whole times a polynomial of the rest. For
// an infinite x the rest is NaN, and the result is 0 or infinite, because scalef ignores a NaN there.
inline Vector fast_power(Vector of) {
    const __m512 x = __m512(of), whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vector rest = Vector(_mm512_sub_ps(x, whole));
    Vector p = rest * 0.05459282f + 0.24221784f;  // least squares at Chebyshev's points
    p = p * rest + 0.6933686f;
    p = p * rest + 1.0f;
    return Vector(_mm512_scalef_ps(__m512(p), whole));
}

// With a relative error of 2^-12, for results that are stored as bfloat16, in a third of the time.
inline Vector fast_silu(Vector x) {
    return x * Vector(_mm512_rcp14_ps(__m512(1.0f + fast_power(x * -1.44269504f))));
}
inline Vector fast_gelu(Vector x) {
    return x * Vector(_mm512_rcp14_ps(__m512(1.0f + fast_power(x * (-2.30220820f - 0.102943242f * x * x)))));
}
#endif
