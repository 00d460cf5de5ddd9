// Products of rows of queries or weights with blocks in any precision, in float32.
//
// Only for inclusion by the kv_<isa>.cpp units; see kv_kernel.h.

#pragma once

#include "kv_work.h"

namespace edge_vl {
namespace {

// --- rows of keys or values as float32, in any precision -------------------------------------------------------------
// `at` goes to a column, `load` loads a vector of row k from there on, `prefetch` asks for as much memory at the same
// place of what will be read next.

template <class S>
struct RowsF32 {
    const float *rows;
    int64_t stride;
    const float *next;
    RowsF32 at(int64_t column) const { return {rows + column, stride, next + column}; }
    typename S::F load(int64_t k, int64_t lane) const { return S::load(rows + k * stride + lane); }
    template <int N>
    void prefetch(int64_t k) const {
        prefetch_bytes<N * 4>(next + k * stride);
    }
};

// Rows that were converted just now.
template <class S>
struct RowsConverted {
    const float *rows;
    int64_t stride;
    RowsConverted at(int64_t column) const { return {rows + column, stride}; }
    typename S::F load(int64_t k, int64_t lane) const { return S::load(rows + k * stride + lane); }
    template <int N>
    void prefetch(int64_t) const {}
};

template <class S>
struct RowsF16 {
    const uint16_t *rows;
    int64_t stride;
    const uint16_t *next;
    RowsF16 at(int64_t column) const { return {rows + column, stride, next + column}; }
    typename S::F load(int64_t k, int64_t lane) const { return S::load_f16(rows + k * stride + lane); }
    template <int N>
    void prefetch(int64_t k) const {
        prefetch_bytes<N * 2>(next + k * stride);
    }
};

template <class S>
struct RowsI8 {
    const int8_t *rows;
    int64_t stride;
    const int8_t *next;
    RowsI8 at(int64_t column) const { return {rows + column, stride, next + column}; }
    typename S::F load(int64_t k, int64_t lane) const { return S::load_i8(rows + k * stride + lane); }
    template <int N>
    void prefetch(int64_t k) const {
        prefetch_bytes<N>(next + k * stride);
    }
};

// Tiles of these are within the low or within the high halves of the bytes.
template <class S>
struct RowsU4 {
    const uint8_t *rows;
    int64_t stride;  // of bytes, half the columns
    const uint8_t *next;
    int shift = 0;
    RowsU4 at(int64_t column) const {
        const bool is_high = column >= stride;
        const int64_t byte = is_high ? column - stride : column;
        return {rows + byte, stride, next + byte, is_high ? 4 : 0};
    }
    typename S::F load(int64_t k, int64_t lane) const { return S::load_u4(rows + k * stride + lane, shift); }
    template <int N>
    void prefetch(int64_t k) const {
        prefetch_bytes<N>(next + k * stride);
    }
};

// Call `use` with the rows at `memory` in a precision; `next` is what will be read after them.
template <class S, class Use>
EDGE_VL_INLINE void with_rows(int64_t precision, const unsigned char *memory, const unsigned char *next,
                              int64_t num_columns, Use use) {
    const void *rows = memory, *later = next;
    switch (precision) {
        case EDGE_VL_KERNELS_F32:
            use(RowsF32<S>{static_cast<const float *>(rows), num_columns, static_cast<const float *>(later)});
            break;
        case EDGE_VL_KERNELS_F16:
            use(RowsF16<S>{static_cast<const uint16_t *>(rows), num_columns, static_cast<const uint16_t *>(later)});
            break;
        case EDGE_VL_KERNELS_INT8:
            use(RowsI8<S>{static_cast<const int8_t *>(rows), num_columns, static_cast<const int8_t *>(later)});
            break;
        default:
            use(RowsU4<S>{memory, num_columns / 2, next});
            break;
    }
}

// --- products --------------------------------------------------------------------------------------------------------

// Compute R rows and V vectors of columns of a product, and hand each vector to `store(row, column, sum)`.
template <class S, int R, int V, class Rows, class Store>
EDGE_VL_INLINE void product_tile(const float *left, int64_t left_stride, int64_t depth, Rows rows, int64_t column,
                                 const Store &store) {
    using F = typename S::F;
    F sums[R * V];
    for_each_index<R * V>([&](auto i) EDGE_VL_INLINE_LAMBDA { sums[i] = S::zero(); });
    for (int64_t k = 0; k < depth; ++k) {
        F right[V];
        for_each_index<V>([&](auto v) EDGE_VL_INLINE_LAMBDA { right[v] = rows.load(k, v * S::kLanes); });
        rows.template prefetch<V * S::kLanes>(k);
        for_each_index<R>([&](auto r) EDGE_VL_INLINE_LAMBDA {
            const F factor = S::broadcast(left[r * left_stride + k]);
            for_each_index<V>([&](auto v) EDGE_VL_INLINE_LAMBDA {
                sums[r * V + v] = S::fma(factor, right[v], sums[r * V + v]);
            });
        });
    }
    for_each_index<R * V>([&](auto i) EDGE_VL_INLINE_LAMBDA { store(i / V, column + i % V * S::kLanes, sums[i]); });
}

template <class S, int R, class Rows, class Store>
EDGE_VL_NO_INLINE void product_rows(const float *left, int64_t left_stride, int64_t depth, const Rows &rows,
                                    int64_t first_column, int64_t last_column, Store store) {
    constexpr int kWidth = S::kLanes * S::kTileVectors;
    constexpr int kNarrow = kWidth > 32 ? 32 / S::kLanes : S::kTileVectors;
    int64_t column = first_column;
    for (; column + kWidth <= last_column; column += kWidth) {
        product_tile<S, R, S::kTileVectors>(left, left_stride, depth, rows.at(column), column, store);
    }
    for (; column < last_column; column += kNarrow * S::kLanes) {
        product_tile<S, R, kNarrow>(left, left_stride, depth, rows.at(column), column, store);
    }
}

// Hand the columns of `left` (num_rows, depth) times `rows` (depth, columns) to `store(row, column, sum)`.
template <class S, class Rows, class Store>
EDGE_VL_INLINE void product(const float *left, int64_t left_stride, int num_rows, int64_t depth, const Rows &rows,
                            int64_t first_column, int64_t last_column, const Store &store) {
    int num_tiles = (num_rows + S::kTileRows - 1) / S::kTileRows;
    for (int first = 0; first < num_rows; --num_tiles) {
        const int count = (num_rows - first + num_tiles - 1) / num_tiles;  // tiles of nearly equal height
        const float *tile = left + first * left_stride;
        const auto shifted = [=](int row, int64_t column, typename S::F sum) { store(first + row, column, sum); };
        switch (count) {
            case 1:
                product_rows<S, 1>(tile, left_stride, depth, rows, first_column, last_column, shifted);
                break;
            case 2:
                product_rows<S, 2>(tile, left_stride, depth, rows, first_column, last_column, shifted);
                break;
            case 3:
                product_rows<S, 3>(tile, left_stride, depth, rows, first_column, last_column, shifted);
                break;
            case 4:
                product_rows<S, 4>(tile, left_stride, depth, rows, first_column, last_column, shifted);
                break;
            case 5:
                product_rows<S, 5>(tile, left_stride, depth, rows, first_column, last_column, shifted);
                break;
            default:
                product_rows<S, 6>(tile, left_stride, depth, rows, first_column, last_column, shifted);
                break;
        }
        first += count;
    }
}

// Convert rows to float32, codes as they are; return null if they are float32 already.
template <class S>
const float *convert_rows(int64_t precision, const unsigned char *memory, int64_t num_rows, int64_t num_columns,
                          unsigned char *room) {
    if (precision == EDGE_VL_KERNELS_F32) {
        return nullptr;
    }
    float *converted = static_cast<float *>(static_cast<void *>(room));
    with_rows<S>(precision, memory, memory, num_columns, [=](const auto &rows) {
        for (int64_t column = 0; column < num_columns; column += S::kLanes) {
            const auto shifted = rows.at(column);
            for (int64_t row = 0; row < num_rows; ++row) {
                S::store(converted + row * num_columns + column, shifted.load(row, 0));
            }
        }
    });
    return converted;
}

}  // namespace
}  // namespace edge_vl
