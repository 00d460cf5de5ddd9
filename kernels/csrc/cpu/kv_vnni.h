// Products of 8- and 4-bit codes as integers: four of them per lane and instruction, and no conversion of the codes.
//
// Only for inclusion by kv_avx512.cpp.
//
// Queries (times key scales) and weights (times value scales) become integers of 16 bits that share a factor per query
// and block, in two digits of 8 bits: they are rounded by 2^-16 of the largest of them at most. Where a query is so
// large that its softmax would show that, a third digit is added.
//
// VPDPBUSD multiplies unsigned by signed bytes. Keys: codes are made unsigned, by adding 128 at 8 bits, digits are
// signed; the 128 leaves again with the sum of the query. Values: weights have no sign, so their digits are unsigned
// and codes stay as they are.

#pragma once

#include <immintrin.h>

#include "kv_digits.h"
#include "kv_kernel.h"
#include "kv_panels.h"

namespace edge_vl {
namespace {

constexpr int kDotRows = 4;              // queries of a tile

// --- products --------------------------------------------------------------------------------------------------------

// Queries or weights as integers: `high` and `low` digits of row r begin at r * stride. No `low` if there is one digit.
struct Digits {
    const unsigned char *high, *low;
    int64_t stride;
};

inline int32_t load_digits(const unsigned char *from) {
    int32_t digits;
    memcpy(&digits, from, sizeof(digits));
    return digits;
}

// Sums of products. GCC's own type of the instruction: it would copy each sum to and from the type of intrinsics.
#if defined(__GNUC__)
using Sums = int __attribute__((vector_size(64)));
#else
using Sums = __m512i;
#endif

template <bool kIsKeys>
EDGE_VL_INLINE Sums dot(Sums sums, __m512i codes, __m512i digits) {
    return (Sums)(kIsKeys ? _mm512_dpbusd_epi32((__m512i)sums, codes, digits)
                          : _mm512_dpbusd_epi32((__m512i)sums, digits, codes));
}

// Compute H halves of a panel, from half `first_half` on, for R rows: int32 (R, 64). `N` is how many digits there are:
// with 1 the low ones do not count.
template <bool kIsKeys, int N, int R, int H, class Panel>
EDGE_VL_INLINE void dot_halves(const Digits &digits, int64_t num_groups, const Panel &panel, int first_half,
                               __m512i *products) {
    constexpr int V = 2 * H;
    Sums high[R * V], low[R * V];
    for_each_index<R * V>([&](auto i) EDGE_VL_INLINE_LAMBDA { high[i] = low[i] = (Sums)_mm512_setzero_si512(); });
    for (int64_t group = 0; group < num_groups; ++group) {
        __m512i codes[V];
        for_each_index<H>([&](auto h) EDGE_VL_INLINE_LAMBDA {
            const Pair pair = panel.half(group, first_half + h);
            codes[2 * h] = pair.first;
            codes[2 * h + 1] = pair.second;
        });
        if (first_half == 0) {
            panel.prefetch(group);
        }
        for_each_index<R>([&](auto r) EDGE_VL_INLINE_LAMBDA {
            const int64_t at = r * digits.stride + 4 * group;
            const __m512i high_digits = _mm512_set1_epi32(load_digits(digits.high + at));
            for_each_index<V>([&](auto v) EDGE_VL_INLINE_LAMBDA {
                high[r * V + v] = dot<kIsKeys>(high[r * V + v], codes[v], high_digits);
            });
            if constexpr (N == 2) {
                const __m512i low_digits = _mm512_set1_epi32(load_digits(digits.low + at));
                for_each_index<V>([&](auto v) EDGE_VL_INLINE_LAMBDA {
                    low[r * V + v] = dot<kIsKeys>(low[r * V + v], codes[v], low_digits);
                });
            }
        });
    }
    for_each_index<R * V>([&](auto i) EDGE_VL_INLINE_LAMBDA {
        products[4 * (i / V) + Panel::place(first_half + i % V / 2, i % 2)] =
            N == 1 ? (__m512i)high[i] : _mm512_add_epi32(_mm512_slli_epi32((__m512i)high[i], 8), (__m512i)low[i]);
    });
}

template <bool kIsKeys, int N, int R, class Panel>
EDGE_VL_NO_INLINE void dot_rows(const Digits &digits, int64_t num_groups, const Panel &panel, __m512i *products) {
    if constexpr (R <= 3) {
        dot_halves<kIsKeys, N, R, 2>(digits, num_groups, panel, 0, products);
    } else {
        dot_halves<kIsKeys, N, R, 1>(digits, num_groups, panel, 0, products);
        dot_halves<kIsKeys, N, R, 1>(digits, num_groups, panel, 1, products);
    }
}

// Hand the four vectors of each row's products with a panel to `store(row, panel)`.
template <bool kIsKeys, int N, class Panel, class Store>
EDGE_VL_INLINE void dot_panel(const Digits &digits, int num_rows, int64_t num_groups, const Panel &panel,
                              const Store &store) {
    int num_tiles = (num_rows + kDotRows - 1) / kDotRows;
    for (int first = 0; first < num_rows; --num_tiles) {
        const int count = (num_rows - first + num_tiles - 1) / num_tiles;
        const int64_t offset = first * digits.stride;
        const Digits tile = {digits.high + offset, N == 2 ? digits.low + offset : nullptr, digits.stride};
        __m512i products[4 * kDotRows];
        switch (count) {
            case 1:
                dot_rows<kIsKeys, N, 1>(tile, num_groups, panel, products);
                break;
            case 2:
                dot_rows<kIsKeys, N, 2>(tile, num_groups, panel, products);
                break;
            case 3:
                dot_rows<kIsKeys, N, 3>(tile, num_groups, panel, products);
                break;
            default:
                dot_rows<kIsKeys, N, 4>(tile, num_groups, panel, products);
                break;
        }
        for (int row = 0; row < count; ++row) {
            __m512i vectors[4] = {products[4 * row], products[4 * row + 1], products[4 * row + 2],
                                  products[4 * row + 3]};
            if (!Panel::kIsNatural) {
                natural_order(vectors);
            }
            store(first + row, vectors);
        }
        first += count;
    }
}

// --- a block ---------------------------------------------------------------------------------------------------------

// The part of the instruction set's structure that works on codes.
struct CodeProducts {
    static constexpr bool kMultipliesCodes = true;

    // Interleave the codes of a block for many queries.
    static void prepare(const HeadView &view, int64_t head_dim, const Work &work) {
        if (is_coded(view.key_precision)) {
            with_key_panel(view, view.keys, [&](const auto &panel) { prepare_panel(panel, head_dim / 4, work.keys); });
        }
        if (is_coded(view.value_precision)) {
            unsigned char *target = work.values;
            with_value_panels(view, view.values, head_dim, [&](const auto &panel, int64_t, int64_t) {
                prepare_panel(panel, kColumns / 4, target);
                target += kColumns * kVectorBytes;
            });
        }
    }

    static void compute_scores(const HeadView &view, const unsigned char *next, const float *queries, int num_queries,
                               int64_t head_dim, const Work &work, bool is_prepared) {
        const DigitRoom room = digit_room(work, 0);
        const bool has_third = query_digits(view, queries, num_queries, head_dim, room);
        const auto store = [=](int row, const __m512i(&products)[4]) {
            const __m512i bias = _mm512_set1_epi32(room.biases[row]);
            const __m512 factor = _mm512_set1_ps(room.factors[row]), offset = _mm512_set1_ps(room.offsets[row]);
            EDGE_VL_UNROLL
            for (int v = 0; v < 4; ++v) {
                const __m512 product = _mm512_cvtepi32_ps(_mm512_sub_epi32(products[v], bias));
                _mm512_storeu_ps(work.scores + row * kColumns + 16 * v, _mm512_fmadd_ps(product, factor, offset));
            }
        };
        const auto add_third = [=](int row, const __m512i(&products)[4]) {
            const __m512i bias = _mm512_set1_epi32(room.biases[kTileQueries + row]);
            const __m512 factor = _mm512_set1_ps(room.factors[row] / kThirdLimit);
            EDGE_VL_UNROLL
            for (int v = 0; v < 4; ++v) {
                float *at = work.scores + row * kColumns + 16 * v;
                const __m512 product = _mm512_cvtepi32_ps(_mm512_sub_epi32(products[v], bias));
                _mm512_storeu_ps(at, _mm512_fmadd_ps(product, factor, _mm512_loadu_ps(at)));
            }
        };
        const auto multiply = [&](const auto &panel) {
            const Digits digits = {room.high, room.low, digit_stride(head_dim)};
            dot_panel<true, 2>(digits, num_queries, head_dim / 4, panel, store);
            if (has_third) {
                const Digits third = {room.third, nullptr, digit_stride(head_dim)};
                dot_panel<true, 1>(third, num_queries, head_dim / 4, panel, add_third);
            }
        };
        if (is_prepared) {
            multiply(PreparedPanel{work.keys});
        } else {
            with_key_panel(view, next, multiply);
        }
    }

    static void add_values(const HeadView &view, const unsigned char *next, int num_queries, int64_t head_dim,
                           int64_t num_groups, const Work &work, bool is_prepared, float *sums) {
        for (int64_t group = 0; group < num_groups; ++group) {
            weight_digits(view, work, group, num_queries, digit_room(work, group));
        }
        const unsigned char *prepared = work.values;
        with_value_panels(view, next, head_dim, [&](const auto &panel, int64_t first, int64_t width) {
            for (int64_t group = 0; group < num_groups; ++group) {
                const int64_t begin = head_dim * group / num_groups, end = head_dim * (group + 1) / num_groups;
                if (first >= end || first + width <= begin) {
                    continue;
                }
                const DigitRoom room = digit_room(work, group);
                const auto store = [=](int row, const __m512i(&products)[4]) {
                    const __m512 factor = _mm512_set1_ps(room.factors[row]);
                    const __m512 offset = _mm512_set1_ps(room.offsets[row]);
                    EDGE_VL_UNROLL
                    for (int64_t v = 0; v < 4; ++v) {
                        const int64_t column = first + 16 * v;
                        if (16 * v < width && begin <= column && column < end) {
                            float *at = sums + row * head_dim + column;
                            const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(at), offset);
                            _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[v]), factor, sum));
                        }
                    }
                };
                const Digits digits = {room.high, room.low, kColumns};
                if (is_prepared) {
                    dot_panel<false, 2>(digits, num_queries, kColumns / 4, PreparedPanel{prepared}, store);
                } else {
                    dot_panel<false, 2>(digits, num_queries, kColumns / 4, panel, store);
                }
            }
            prepared += kColumns * kVectorBytes;
        });
    }
};

}  // namespace
}  // namespace edge_vl
