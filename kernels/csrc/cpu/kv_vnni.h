// Products of 8- and 4-bit codes as integers: four of them per lane and instruction, and no conversion of the codes.
//
// Only for inclusion by kv_avx512.cpp. Queries (times key scales) and weights (times value scales) become integers of 16
// bits that share a factor per query and block, in two digits of 8 bits: they are rounded by 2^-16 of the largest of them
// at most. Where a query is so large that its softmax would show that, a third digit is added.
//
// VPDPBUSD multiplies unsigned by signed bytes. Keys: codes are made unsigned, by adding 128 at 8 bits, digits are
// signed; the 128 leaves again with the sum of the query. Values: weights have no sign, so their digits are unsigned and
// codes stay as they are.
//
// Four rows (channels of keys, entries of values) have to lie in the bytes of a lane: rows are interleaved on the way
// from memory, 64 columns at a time, a *panel* of four vectors.

#pragma once

#include <immintrin.h>

#include "kv_kernel.h"

namespace edge_vl {
namespace {

constexpr int kDotRows = 4;              // queries of a tile
constexpr float kQueryLimit = 32512.0f;  // 127 * 256: the high digit stays within 127
constexpr float kWeightLimit = 65535.0f;
constexpr float kThirdLimit = 250.0f;  // a third digit is that many parts of the second one's last place: half of them, and a bit, fit
// Largest element of a query (in powers of two per code) that two digits are enough for: scores are then off by 1e-4 to
// 5e-4, a rounding error of each channel times its code taken together.
constexpr float kTwoDigitRange8 = 0.0625f, kTwoDigitRange4 = 0.5f;
constexpr int64_t kVectorBytes = 64;

inline __m512i load_bytes(const void *from) { return _mm512_loadu_si512(from); }

// --- sources of panels -----------------------------------------------------------------------------------------------
// `half(group, h)` interleaves the four rows of a group and returns vectors `place(h, 0)` and `place(h, 1)` of the panel.

struct Pair {
    __m512i first, second;
};

// Bytes of four rows. Vector v has columns 16 j + 4 v to 16 j + 4 v + 3 in its 128-bit lane j; see `natural_order`.
template <bool kIsMasked>
struct InterleavedRows {
    const unsigned char *rows, *next;
    int64_t stride;
    __mmask64 mask;  // which columns there are

    __m512i row(int64_t index) const {
        const unsigned char *at = rows + index * stride;
        return kIsMasked ? _mm512_maskz_loadu_epi8(mask, at) : load_bytes(at);
    }
    EDGE_VL_INLINE Pair half(int64_t group, int h) const {
        const __m512i a = row(4 * group), b = row(4 * group + 1), c = row(4 * group + 2), d = row(4 * group + 3);
        const __m512i ab = h == 0 ? _mm512_unpacklo_epi8(a, b) : _mm512_unpackhi_epi8(a, b);
        const __m512i cd = h == 0 ? _mm512_unpacklo_epi8(c, d) : _mm512_unpackhi_epi8(c, d);
        return {_mm512_unpacklo_epi16(ab, cd), _mm512_unpackhi_epi16(ab, cd)};
    }
    EDGE_VL_INLINE void prefetch(int64_t group) const {
        EDGE_VL_UNROLL
        for (int64_t row = 0; row < 4; ++row) {
            prefetch_line(next + (4 * group + row) * stride);
        }
    }
    static constexpr bool kIsNatural = false;
    static constexpr int place(int h, int index) { return 2 * h + index; }
};

// 8-bit codes, made unsigned if `kIsShifted`.
template <bool kIsMasked, bool kIsShifted>
struct PanelI8 : InterleavedRows<kIsMasked> {
    EDGE_VL_INLINE Pair half(int64_t group, int h) const {
        const Pair pair = InterleavedRows<kIsMasked>::half(group, h);
        const __m512i shift = _mm512_set1_epi8(static_cast<char>(kIsShifted ? 0x80 : 0));
        return kIsShifted ? Pair{_mm512_xor_si512(pair.first, shift), _mm512_xor_si512(pair.second, shift)} : pair;
    }
};

// The low or high halves of bytes.
template <bool kIsMasked, int kShift>
struct PanelU4 : InterleavedRows<kIsMasked> {
    EDGE_VL_INLINE Pair half(int64_t group, int h) const {
        const Pair pair = InterleavedRows<kIsMasked>::half(group, h);
        const __m512i half_byte = _mm512_set1_epi8(15);
        return {_mm512_and_si512(_mm512_srli_epi16(pair.first, kShift), half_byte),
                _mm512_and_si512(_mm512_srli_epi16(pair.second, kShift), half_byte)};
    }
};

// Both halves of rows of 32 bytes, which lie behind one another: vectors 0 and 1 are the low halves, 2 and 3 the high.
struct PanelU4Short {
    const unsigned char *rows, *next;
    __m512i low_order, high_order;

    PanelU4Short(const unsigned char *memory, const unsigned char *later) : rows(memory), next(later) {
        // Byte 4 i + k of vector h is byte 16 h + i of row k.
        const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        low_order = _mm512_add_epi32(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(0x01010101)),
                                     _mm512_set1_epi32(0x60402000));
        high_order = _mm512_add_epi32(low_order, _mm512_set1_epi32(0x10101010));
    }
    EDGE_VL_INLINE Pair half(int64_t group, int h) const {
        const unsigned char *at = rows + group * 128;
        const __m512i order = h == 0 ? low_order : high_order, half_byte = _mm512_set1_epi8(15);
        const __m512i bytes = _mm512_permutex2var_epi8(load_bytes(at), order, load_bytes(at + 64));
        return {_mm512_and_si512(bytes, half_byte), _mm512_and_si512(_mm512_srli_epi16(bytes, 4), half_byte)};
    }
    EDGE_VL_INLINE void prefetch(int64_t group) const { prefetch_bytes<128>(next + group * 128); }
    static constexpr bool kIsNatural = true;
    static constexpr int place(int h, int index) { return h + 2 * index; }
};

// A panel that was interleaved before, vectors in natural order.
struct PreparedPanel {
    const unsigned char *panel;
    EDGE_VL_INLINE Pair half(int64_t group, int h) const {
        const unsigned char *at = panel + (4 * group + 2 * h) * kVectorBytes;
        return {load_bytes(at), load_bytes(at + kVectorBytes)};
    }
    EDGE_VL_INLINE void prefetch(int64_t) const {}
    static constexpr bool kIsNatural = true;
    static constexpr int place(int h, int index) { return 2 * h + index; }
};

// Put vectors whose lanes j are columns 16 j + 4 v into the order of columns.
EDGE_VL_INLINE void natural_order(__m512i (&panel)[4]) {
    const __m512i a = _mm512_shuffle_i32x4(panel[0], panel[1], 0x44), b = _mm512_shuffle_i32x4(panel[0], panel[1], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(panel[2], panel[3], 0x44), d = _mm512_shuffle_i32x4(panel[2], panel[3], 0xee);
    panel[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    panel[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
    panel[2] = _mm512_shuffle_i32x4(b, d, 0x88);
    panel[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

template <class Panel>
EDGE_VL_NO_INLINE void prepare_panel(Panel source, int64_t num_groups, unsigned char *target) {
    for (int64_t group = 0; group < num_groups; ++group) {
        __m512i panel[4];
        EDGE_VL_UNROLL
        for (int h = 0; h < 2; ++h) {
            const Pair pair = source.half(group, h);
            panel[Panel::place(h, 0)] = pair.first;
            panel[Panel::place(h, 1)] = pair.second;
        }
        if (!Panel::kIsNatural) {
            natural_order(panel);
        }
        EDGE_VL_UNROLL
        for (int v = 0; v < 4; ++v) {
            _mm512_store_si512(target + (4 * group + v) * kVectorBytes, panel[v]);
        }
    }
}

// Call `use(panel)` with the keys of a block.
template <class Use>
EDGE_VL_INLINE void with_key_panel(const HeadView &view, const unsigned char *next, Use use) {
    if (view.key_precision == EDGE_VL_KERNELS_INT4) {
        use(PanelU4Short(view.keys, next));
    } else {
        use(PanelI8<false, true>{{view.keys, next, kBlockEntries, 0}});
    }
}

// Call `use(panel, first column, number of columns)` for each panel of a block's values.
template <class Use>
EDGE_VL_INLINE void with_value_panels(const HeadView &view, const unsigned char *next, int64_t head_dim, Use use) {
    const bool is_int4 = view.value_precision == EDGE_VL_KERNELS_INT4;
    if (is_int4 && head_dim == kBlockEntries) {
        use(PanelU4Short(view.values, next), 0, kBlockEntries);
        return;
    }
    const int64_t row_bytes = is_int4 ? head_dim / 2 : head_dim;
    for (int64_t byte = 0; byte < row_bytes; byte += 64) {
        const int64_t width = row_bytes - byte < 64 ? row_bytes - byte : 64;
        const unsigned char *rows = view.values + byte, *later = next + byte;
        const __mmask64 mask = width == 64 ? ~__mmask64{0} : (__mmask64{1} << width) - 1;
        if (!is_int4 && width == 64) {
            use(PanelI8<false, false>{{rows, later, row_bytes, mask}}, byte, width);
        } else if (!is_int4) {
            use(PanelI8<true, false>{{rows, later, row_bytes, mask}}, byte, width);
        } else if (width == 64) {
            use(PanelU4<false, 0>{{rows, later, row_bytes, mask}}, byte, width);
            use(PanelU4<false, 4>{{rows, later, row_bytes, mask}}, head_dim / 2 + byte, width);
        } else {
            use(PanelU4<true, 0>{{rows, later, row_bytes, mask}}, byte, width);
            use(PanelU4<true, 4>{{rows, later, row_bytes, mask}}, head_dim / 2 + byte, width);
        }
    }
}

// --- products --------------------------------------------------------------------------------------------------------

// Queries or weights as integers: `high` and `low` digits of row r begin at r * stride.
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
        const Digits tile = {digits.high + offset, digits.low + offset, digits.stride};
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

// --- digits ----------------------------------------------------------------------------------------------------------

inline __m128i load_16_bytes(const void *from) { return _mm_loadu_si128(static_cast<const __m128i *>(from)); }

// Where queries or weights are kept as digits: in the room for codes. Weights of a second group of channels come behind.
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

// Split 64 integers of 16 bits, words of which the lanes j are 16 v + 4 j + i (vector v = 0, 1 first, then 2, 3), into
// bytes in their order.
EDGE_VL_INLINE void store_digits(__m512i words, __m512i more_words, bool is_signed, unsigned char *high,
                                 unsigned char *low) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i byte = _mm512_set1_epi16(255), half = _mm512_set1_epi16(128);
    const __m512i lows = _mm512_packus_epi16(_mm512_and_si512(words, byte), _mm512_and_si512(more_words, byte));
    // A signed low digit leaves the multiple of 256 that is nearest to the high one.
    const __m512i highs = is_signed ? _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(words, half), 8),
                                                         _mm512_srai_epi16(_mm512_add_epi16(more_words, half), 8))
                                    : _mm512_packus_epi16(_mm512_srli_epi16(words, 8), _mm512_srli_epi16(more_words, 8));
    _mm512_storeu_si512(low, _mm512_permutexvar_epi32(order, lows));
    _mm512_storeu_si512(high, _mm512_permutexvar_epi32(order, highs));
}

// Bytes from one query's digits to those of the next: whole panels.
inline int64_t digit_stride(int64_t head_dim) { return (head_dim + 63) / 64 * 64; }

// Multiply R queries of C times 64 channels (the last 32 of which are not there, if `kIsShort`) by key scales and make two
// digits of them. Return the largest element.
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
            dot_panel<true, 2>(Digits{room.high, room.low, digit_stride(head_dim)}, num_queries, head_dim / 4, panel, store);
            if (has_third) {
                dot_panel<true, 1>(Digits{room.third, room.third, digit_stride(head_dim)}, num_queries, head_dim / 4, panel, add_third);
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
