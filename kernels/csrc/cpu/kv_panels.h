// Codes interleaved for products of integers; see kv_vnni.h.
//
// Only for inclusion by kv_avx512.cpp. Four rows (channels of keys, entries of values) have to lie in the bytes of a
// lane: rows are interleaved on the way from memory, 64 columns at a time, a *panel* of four vectors.

#pragma once

#include <immintrin.h>

#include "kv_work.h"

namespace edge_vl {
namespace {

constexpr int64_t kVectorBytes = 64;

inline __m512i load_bytes(const void *from) { return _mm512_loadu_si512(from); }

// `half(group, h)` interleaves the four rows of a group and returns vectors `place(h, 0)` and `place(h, 1)` of a panel;
// `prefetch(group)` asks for as much memory at the same place of what will be read next.

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
    const __m512i a = _mm512_shuffle_i32x4(panel[0], panel[1], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(panel[0], panel[1], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(panel[2], panel[3], 0x44);
    const __m512i d = _mm512_shuffle_i32x4(panel[2], panel[3], 0xee);
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

}  // namespace
}  // namespace edge_vl
