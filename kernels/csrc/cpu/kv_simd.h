// What the key/value kernels of all instruction sets share below their vector operations.
//
// Only for inclusion by the kv_<isa>.cpp units; see kv_kernel.h. A unit's structure `S` of vector operations has
//
//   F                       a vector of kLanes float32: a power of two, at most 16
//   kTileRows, kTileVectors a tile of a product: rows (at most 6), and vectors of columns (16 columns, or 64)
//   kMultipliesCodes        there are products of codes as integers: prepare, compute_scores, add_values
//   load_u4(bytes, shift)   of each byte the low (shift 0) or the high (shift 4) half
//   round                   to the nearest integer, half to even
//   scale(x, n)             x 2^n for an integral n up to 15; 0 where n is -127 or less
//   limit_exponent(x)       x, or -127 or so where it is less: then `scale` may rely on that
//   keep_first(x, n, y)     lane i of x where i < n, else of y; n is any number
//   store_f16, store_i8     nearest, half to even; lanes are integers within -127 to 255: their low 8 bits
//
// and loads, stores and arithmetic by their usual names. Addresses need not be aligned.

#pragma once

#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER) && !defined(__clang__)
#define EDGE_VL_INLINE __forceinline
#define EDGE_VL_NO_INLINE __declspec(noinline)
#define EDGE_VL_RESTRICT __restrict
#define EDGE_VL_UNROLL
#define EDGE_VL_INLINE_LAMBDA [[msvc::forceinline]]
#else
#define EDGE_VL_INLINE inline __attribute__((always_inline))
#define EDGE_VL_NO_INLINE __attribute__((noinline))
#define EDGE_VL_RESTRICT __restrict__
#define EDGE_VL_INLINE_LAMBDA __attribute__((always_inline))
#if defined(__clang__)
#define EDGE_VL_UNROLL _Pragma("unroll")
#else
#define EDGE_VL_UNROLL _Pragma("GCC unroll 32")
#endif
#endif

// Products and sums are rounded apart, as in the reference, unless they are fused by name. (GCC takes this from the
// command line alone: -ffp-contract=off.)
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

namespace edge_vl {
namespace {

constexpr float kLargest = 3.402823466e38f;

inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// Convert float16. Source: IEEE 754-2019, section 3.4; a number is shifted into place and its exponent corrected by a
// multiplication, which also makes subnormal numbers right.
inline float float_of_half(uint16_t half) {
    const uint32_t magnitude = half & 0x7fffu;
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    if (magnitude >= 0x7c00u) {
        return float_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    }
    const float value = float_of_bits(magnitude << 13) * 5.192296858534828e33f;  // 2^112
    return float_of_bits(bits_of_float(value) | sign);
}

// Convert to float16: to the nearest, half to even.
inline uint16_t half_of_float(float value) {
    const uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u;
    } else if (magnitude >= 0x47800000u) {  // 2^16 and more
        half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // below 2^-14: the addition rounds at the last place of subnormal float16
        half = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
    }
    return static_cast<uint16_t>(half | sign);
}

template <int I>
struct Index {
    static constexpr int value = I;
    constexpr operator int() const { return I; }
};

// Call `use` with Index<0> to Index<N - 1>. Arrays of vectors are indexed with these: where an index becomes constant
// only when a loop is unrolled, GCC may keep the array in memory.
template <int N, class Use>
EDGE_VL_INLINE void for_each_index(const Use &use) {
    if constexpr (N > 0) {
        for_each_index<N - 1>(use);
        use(Index<N - 1>{});
    }
}

EDGE_VL_INLINE void prefetch_line(const void *address) {
#if defined(_MSC_VER) && !defined(__clang__)
#if defined(_M_X64)
    _mm_prefetch(static_cast<const char *>(address), 3);
#endif
#else
    __builtin_prefetch(address, 0, 2);
#endif
}

// Ask for a few bytes in advance. The address need not be that of anything.
template <int N>
EDGE_VL_INLINE void prefetch_bytes(const void *address) {
    EDGE_VL_UNROLL
    for (int at = 0; at < N; at += 64) {
        prefetch_line(static_cast<const char *>(address) + at);
    }
}

}  // namespace
}  // namespace edge_vl
