// Queries and weights as integers, in digits of 8 bits; see kv_vnni.h.
//
// Only for inclusion by kv_avx512.cpp.

#pragma once

#include <immintrin.h>

#include "kv_work.h"

namespace edge_vl {
namespace {

constexpr float kQueryLimit = 32512.0f;  // 127 * 256: the high digit stays within 127
constexpr float kWeightLimit = 65535.0f;
// A third digit counts parts of the second one's last place: half of that, and what rounding adds, has to fit into 127.
constexpr float kThirdLimit = 250.0f;
// Largest element of a query (in powers of two per code) that two digits are enough for: scores are then off by 1e-4 to
// 5e-4, a rounding error of each channel times its code taken together.
constexpr float kTwoDigitRange8 = 0.0625f, kTwoDigitRange4 = 0.5f;

inline __m128i load_16_bytes(const void *from) { return _mm_loadu_si128(static_cast<const __m128i *>(from)); }

// Where queries or weights are kept as digits: in the room for codes. Weights of a second group of channels come behind
// those of the first.
struct DigitRoom {
    unsigned char *high, *low, *third;
    float *factors;   // (kTileQueries): a product of digits and codes times this is one of numbers
    float *offsets;   // (kTileQueries): what the zeros add
    int32_t *biases;  // (2, kTileQueries): what the shift of the codes added, with two digits and with the third
};

inline DigitRoom digit_room(const Work &work, int64_t group) {
    unsigned char *room = work.codes + group * kTileQueries * 512;
    float *floats = static_cast<float *>(static_cast<void *>(work.codes + kTileQueries * 1280)) + group * 96;
    void *biases = floats + 2 * kTileQueries;
    return {room,   room + kTileQueries * 256,  work.codes + kTileQueries * 1024,
            floats, floats + kTileQueries,      static_cast<int32_t *>(biases)};
}

inline __m512 load_halves(const uint16_t *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i *>(static_cast<const void *>(from))));
}

// Split 64 integers of 16 bits into bytes in their order. They come as two vectors of 32 integers were packed: 128-bit
// lane j has 4 j to 4 j + 3 and 16 + 4 j to 16 + 4 j + 3, and 32 more in `more_words`.
EDGE_VL_INLINE void store_digits(__m512i words, __m512i more_words, bool is_signed, unsigned char *high,
                                 unsigned char *low) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i byte = _mm512_set1_epi16(255), half = _mm512_set1_epi16(128);
    const __m512i lows = _mm512_packus_epi16(_mm512_and_si512(words, byte), _mm512_and_si512(more_words, byte));
    // A signed low digit leaves the multiple of 256 that is nearest to the high one.
    const __m512i highs = is_signed
                              ? _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(words, half), 8),
                                                   _mm512_srai_epi16(_mm512_add_epi16(more_words, half), 8))
                              : _mm512_packus_epi16(_mm512_srli_epi16(words, 8), _mm512_srli_epi16(more_words, 8));
    _mm512_storeu_si512(low, _mm512_permutexvar_epi32(order, lows));
    _mm512_storeu_si512(high, _mm512_permutexvar_epi32(order, highs));
}

// Bytes from one query's digits to those of the next: whole panels.
inline int64_t digit_stride(int64_t head_dim) { return (head_dim + 63) / 64 * 64; }

// Multiply R queries of C times 64 channels (the last 32 of which are not there, if `kIsShort`) by key scales and make
// two digits of them. Return the largest element.
template <int R, int C, bool kIsShort, bool kHasZeros>
EDGE_VL_NO_INLINE float two_digits(const HeadView &view, const float *queries, int first, int64_t head_dim,
                                   const DigitRoom &room) {
    __m512 folded[R][4 * C], largest[R], offset[R];
    EDGE_VL_UNROLL
    for (int r = 0; r < R; ++r) {
        largest[r] = offset[r] = _mm512_setzero_ps();
    }
    EDGE_VL_UNROLL
    for (int v = 0; v < 4 * C; ++v) {
        const bool is_there = !kIsShort || v < 4 * C - 2;
        const __m512 scales = is_there ? load_halves(view.key_scales + 16 * v) : _mm512_setzero_ps();
        const __m512 zeros = is_there && kHasZeros ? load_halves(view.key_zeros + 16 * v) : _mm512_setzero_ps();
        EDGE_VL_UNROLL
        for (int r = 0; r < R; ++r) {
            const float *row = queries + (first + r) * head_dim;
            const __m512 loaded = is_there ? _mm512_loadu_ps(row + 16 * v) : _mm512_setzero_ps();
            folded[r][v] = _mm512_mul_ps(loaded, scales);
            largest[r] = _mm512_max_ps(largest[r], _mm512_abs_ps(folded[r][v]));
            if (kHasZeros) {
                offset[r] = _mm512_fmadd_ps(loaded, zeros, offset[r]);
            }
        }
    }
    float largest_range = 0.0f;
    EDGE_VL_UNROLL
    for (int r = 0; r < R; ++r) {
        const float range = _mm512_reduce_max_ps(largest[r]);
        const bool is_zero = !(range > 1e-30f);  // what is smaller makes no difference to a softmax
        const __m512 inverse = _mm512_set1_ps(is_zero ? 0.0f : kQueryLimit / range);
        room.factors[first + r] = is_zero ? 0.0f : range * (1.0f / kQueryLimit);
        room.offsets[first + r] = kHasZeros ? _mm512_reduce_add_ps(offset[r]) : 0.0f;
        largest_range = range > largest_range ? range : largest_range;
        const int64_t place = (first + r) * digit_stride(head_dim);
        __m512i sum = _mm512_setzero_si512();
        EDGE_VL_UNROLL
        for (int c = 0; c < C; ++c) {
            __m512i whole[4];
            EDGE_VL_UNROLL
            for (int v = 0; v < 4; ++v) {
                whole[v] = _mm512_cvtps_epi32(_mm512_mul_ps(folded[r][4 * c + v], inverse));
            }
            const __m512i words = _mm512_packs_epi32(whole[0], whole[1]);
            const __m512i more_words = _mm512_packs_epi32(whole[2], whole[3]);
            store_digits(words, more_words, true, room.high + place + 64 * c, room.low + place + 64 * c);
            if (!kHasZeros) {
                sum = _mm512_dpwssd_epi32(sum, words, _mm512_set1_epi16(1));
                sum = _mm512_dpwssd_epi32(sum, more_words, _mm512_set1_epi16(1));
            }
        }
        room.biases[first + r] = kHasZeros ? 0 : 128 * _mm512_reduce_add_epi32(sum);
    }
    return largest_range;
}

// The same for as many queries as fit into registers: return how many those were.
template <int C, bool kIsShort, bool kHasZeros>
int some_two_digits(const HeadView &view, const float *queries, int first, int num_queries, int64_t head_dim,
                    const DigitRoom &room, float *largest_range) {
    constexpr int kMost = C == 1 ? 4 : (C == 2 ? 2 : 1);
    const int left = num_queries - first;
    int count = kMost;
    float range;
    if (left >= kMost) {
        range = two_digits<kMost, C, kIsShort, kHasZeros>(view, queries, first, head_dim, room);
    } else if (kMost == 4 && left == 3) {
        count = 3;
        range = two_digits<kMost == 4 ? 3 : 1, C, kIsShort, kHasZeros>(view, queries, first, head_dim, room);
    } else if (kMost == 4 && left == 2) {
        count = 2;
        range = two_digits<kMost == 4 ? 2 : 1, C, kIsShort, kHasZeros>(view, queries, first, head_dim, room);
    } else {
        count = 1;
        range = two_digits<1, C, kIsShort, kHasZeros>(view, queries, first, head_dim, room);
    }
    *largest_range = range > *largest_range ? range : *largest_range;
    return count;
}

template <bool kIsShort, bool kHasZeros>
float all_two_digits(const HeadView &view, const float *queries, int num_queries, int64_t head_dim,
                     const DigitRoom &room) {
    float largest_range = 0.0f;
    const auto some = digit_stride(head_dim) == 64    ? some_two_digits<1, kIsShort, kHasZeros>
                      : digit_stride(head_dim) == 128 ? some_two_digits<2, kIsShort, kHasZeros>
                      : digit_stride(head_dim) == 192 ? some_two_digits<3, kIsShort, kHasZeros>
                                                      : some_two_digits<4, kIsShort, kHasZeros>;
    for (int query = 0; query < num_queries;) {
        query += some(view, queries, query, num_queries, head_dim, room, &largest_range);
    }
    return largest_range;
}

// Make digits of queries times key scales. Return whether one needs a third digit; of the others that is 0.
inline bool query_digits(const HeadView &view, const float *queries, int num_queries, int64_t head_dim,
                         const DigitRoom &room) {
    const bool has_zeros = view.key_precision == EDGE_VL_KERNELS_INT4, is_short = head_dim % 64 != 0;
    const float two_digit_range = has_zeros ? kTwoDigitRange4 : kTwoDigitRange8;
    const auto all = is_short ? (has_zeros ? all_two_digits<true, true> : all_two_digits<true, false>)
                              : (has_zeros ? all_two_digits<false, true> : all_two_digits<false, false>);
    if (!(all(view, queries, num_queries, head_dim, room) > two_digit_range)) {
        return false;
    }
    for (int query = 0; query < num_queries; ++query) {
        const float *row = queries + query * head_dim;
        const int64_t place = query * digit_stride(head_dim);
        const bool is_needed = room.factors[query] * kQueryLimit > two_digit_range;
        const __m512 factor = _mm512_set1_ps(room.factors[query]);
        const __m512 inverse = _mm512_set1_ps(is_needed ? kThirdLimit / room.factors[query] : 0.0f);
        __m512i sum = _mm512_setzero_si512();
        for (int64_t at = 0; at < head_dim; at += 16) {
            const __m512 folded = _mm512_mul_ps(_mm512_loadu_ps(row + at), load_halves(view.key_scales + at));
            // What the two digits say, not what they were made from: roundings on that way do not count.
            const __m512i high = _mm512_cvtepi8_epi32(load_16_bytes(room.high + place + at));
            const __m512i low = _mm512_cvtepi8_epi32(load_16_bytes(room.low + place + at));
            const __m512 whole = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
            const __m512i digit = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_fnmadd_ps(whole, factor, folded), inverse));
            _mm_storeu_si128(static_cast<__m128i *>(static_cast<void *>(room.third + place + at)),
                             _mm512_cvtsepi32_epi8(digit));
            sum = _mm512_add_epi32(sum, digit);
        }
        room.biases[kTileQueries + query] = has_zeros ? 0 : 128 * _mm512_reduce_add_epi32(sum);
    }
    return true;
}

// Multiply weights by the value scales of a group of channels and make digits of them.
inline void weight_digits(const HeadView &view, const Work &work, int64_t group, int num_queries,
                          const DigitRoom &room) {
    const bool has_zeros = view.value_precision == EDGE_VL_KERNELS_INT4;
    __m512 scales[4], zeros[4];
    EDGE_VL_UNROLL
    for (int v = 0; v < 4; ++v) {
        scales[v] = _mm512_loadu_ps(work.scales + group * kColumns + 16 * v);
        zeros[v] = has_zeros ? _mm512_loadu_ps(work.zeros + group * kColumns + 16 * v) : _mm512_setzero_ps();
    }
    for (int query = 0; query < num_queries; ++query) {
        const float *row = work.scores + query * kColumns;
        __m512 folded[4], largest = _mm512_setzero_ps(), offset = _mm512_setzero_ps();
        EDGE_VL_UNROLL
        for (int v = 0; v < 4; ++v) {
            const __m512 loaded = _mm512_loadu_ps(row + 16 * v);
            folded[v] = _mm512_mul_ps(loaded, scales[v]);
            largest = _mm512_max_ps(largest, folded[v]);
            offset = _mm512_fmadd_ps(loaded, zeros[v], offset);
        }
        const float range = _mm512_reduce_max_ps(largest);
        const bool is_zero = !(range > 1e-30f);  // far below what float16 values can add up to
        const __m512 inverse = _mm512_set1_ps(is_zero ? 0.0f : kWeightLimit / range);
        __m512i whole[4];
        EDGE_VL_UNROLL
        for (int v = 0; v < 4; ++v) {
            whole[v] = _mm512_cvtps_epi32(_mm512_mul_ps(folded[v], inverse));
        }
        store_digits(_mm512_packus_epi32(whole[0], whole[1]), _mm512_packus_epi32(whole[2], whole[3]), false,
                     room.high + query * kColumns, room.low + query * kColumns);
        room.factors[query] = is_zero ? 0.0f : range * (1.0f / kWeightLimit);
        room.offsets[query] = has_zeros ? _mm512_reduce_add_ps(offset) : 0.0f;
    }
}

}  // namespace
}  // namespace edge_vl
