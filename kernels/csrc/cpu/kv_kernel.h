// Attention over key/value blocks, for any instruction set: a template over a structure `S` of vector operations.
//
// Only for inclusion by the kv_<isa>.cpp units. Everything is in an anonymous namespace: code that was compiled for one
// instruction set must not be linked into the unit of another.
//
// All products are of the same kind: rows of queries times the channels of keys, rows of weights times the entries of
// values. A tile of such a product stays in registers. Keys are channel-major, so that no sum runs across a register.
//
// Sources: online softmax and attention in parts: Milakov and Gimelshein (arXiv 1805.02867), FlashAttention (arXiv
// 2205.14135) and Flash-Decoding (Dao et al., 2023); the scales of keys per channel and of values per entry, which leave
// the inner loops: KIVI (arXiv 2402.02750).

#pragma once

#include "kv_rows.h"
#include "kv_simd.h"
#include "kv_table.h"

namespace edge_vl {
namespace {

constexpr int kColumns = static_cast<int>(kBlockEntries);
// Queries whose scores are kept at a time.
constexpr int kTileQueries = 24;
// Up to so many queries read a block as it is stored; for more of them it is converted once.
constexpr int64_t kMaxDirectQueries = 8;
// Such queries read several blocks at a time, as many as leave the first-level cache room: what each block costs beside
// its products are long chains of small operations, and those of several blocks overlap.
constexpr int64_t kMaxDirectBlocks = 4;
constexpr int64_t kMaxDirectBytes = 16384;  // of values
// The running maximum of a softmax is raised when a score is so far above it (in powers of two): until then weights
// above 1 do no harm, and sums need no correction.
constexpr float kMaxExcess = 8.0f;
constexpr float kLog2E = 1.44269504088896340736f;

// One head's part of a page.
struct HeadView {
    int64_t key_precision, value_precision;
    const unsigned char *keys, *values;
    const uint16_t *key_scales, *key_zeros, *value_scales, *value_zeros;
};

inline const uint16_t *halves_at(const unsigned char *memory, int64_t offset) {
    return static_cast<const uint16_t *>(static_cast<const void *>(memory + offset));
}

inline HeadView view_of(const edge_vl_kernels_kv_slice *slice, const unsigned char *head) {
    return {slice->key_precision,
            slice->value_precision,
            head,
            head + slice->values,
            halves_at(head, slice->key_scales),
            halves_at(head, slice->key_zeros),
            halves_at(head, slice->value_scales),
            halves_at(head, slice->value_zeros)};
}

inline int64_t value_bytes(const HeadView &view, int64_t head_dim) {
    constexpr int64_t kBits[] = {32, 16, 8, 4};
    return kBlockEntries * head_dim * kBits[view.value_precision] / 8;
}

inline bool is_coded(int64_t precision) { return precision >= EDGE_VL_KERNELS_INT8; }

// What a thread needs to attend: in scratch memory.
struct Work {
    float *queries;        // (queries, head_dim), turned and scaled
    float *folded;         // (kTileQueries, head_dim): queries times key scales
    float *scores;         // (kTileQueries, 64): scores, then weights, of one block or of several with fewer queries
    float *weights;        // (kTileQueries, 64): weights times value scales
    float *offsets;        // (2, kTileQueries): what the zeros add
    float *scales, *zeros; // (2, 64) of values
    unsigned char *keys;   // room for (head_dim, 64) float32
    unsigned char *values; // room for (64, head_dim) float32
    unsigned char *codes;  // room for kCodeBytes, of the instruction sets that multiply integers
};

constexpr int64_t kWorkFloats = kTileQueries * (kMaxHeadDim + 2 * kColumns + 2) + 4 * kColumns + 16;
constexpr int64_t kCodeBytes = kTileQueries * 1280 + 4096;

int64_t scratch_bytes(int64_t num_queries, int64_t head_dim) {
    return 4 * ((num_queries + 2 * kColumns) * head_dim + kWorkFloats) + kCodeBytes;
}

Work work_in(void *scratch, int64_t num_queries, int64_t head_dim) {
    Work work;
    float *next = static_cast<float *>(scratch);
    const auto take = [&next](int64_t size) {
        float *taken = next;
        next += size;
        return taken;
    };
    work.queries = take(num_queries * head_dim);
    work.folded = take(kTileQueries * head_dim);
    work.scores = take(kTileQueries * kColumns);
    work.weights = take(kTileQueries * kColumns);
    work.offsets = take(2 * kTileQueries);
    take(16 - 2 * kTileQueries % 16);
    work.scales = take(2 * kColumns);
    work.zeros = take(2 * kColumns);
    const auto bytes = [](float *memory) { return static_cast<unsigned char *>(static_cast<void *>(memory)); };
    work.keys = bytes(take(kColumns * head_dim));
    work.values = bytes(take(kColumns * head_dim));
    work.codes = bytes(next);
    return work;
}

// What has been seen so far, of each query: sums of weighted values, sums of weights and the maximum they relate to.
struct Partial {
    float *values;  // (queries, head_dim)
    float *sums;    // (queries, 16), of which the sum counts
    float *maxima;  // (queries)
    float *poison;  // (queries): 0, or NaN if a query is not finite
};

constexpr int64_t kMaxLanes = 16;

int64_t partial_size(int64_t num_queries, int64_t head_dim) {
    const int64_t padded = (num_queries + 15) / 16 * 16;
    return num_queries * (head_dim + kMaxLanes) + 2 * padded;
}

Partial partial_in(float *memory, int64_t num_queries, int64_t head_dim) {
    Partial partial;
    partial.values = memory;
    partial.sums = partial.values + num_queries * head_dim;
    partial.maxima = partial.sums + num_queries * kMaxLanes;
    partial.poison = partial.maxima + (num_queries + 15) / 16 * 16;
    return partial;
}

// --- rows of keys or values as float32, in any precision -------------------------------------------------------------
// `at` goes to a column, `load` loads a vector of row k from there on, `prefetch` asks for as much memory at the same place
// of what will be read next.

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

// --- softmax ---------------------------------------------------------------------------------------------------------

// Return 2^x for x <= 8 or so, 0 below -126. The error is at most 1.6e-7 of the result: a polynomial of degree 5 on
// [-1/2, 1/2], fitted for the least relative error with 2^0 = 1 kept exact.
template <class S>
EDGE_VL_INLINE typename S::F exp2_of(typename S::F x) {
    using F = typename S::F;
    x = S::limit_exponent(x);
    const F whole = S::round(x);
    const F part = S::sub(x, whole);
    F power = S::broadcast(0.001326472731307149f);
    power = S::fma(power, part, S::broadcast(0.009671512991189957f));
    power = S::fma(power, part, S::broadcast(0.05550733581185341f));
    power = S::fma(power, part, S::broadcast(0.24022242426872253f));
    power = S::fma(power, part, S::broadcast(0.6931470036506653f));
    power = S::fma(power, part, S::broadcast(1.0f));
    return S::scale(power, whole);
}

template <class S>
float exp2_of(float x) {
    alignas(64) float lanes[S::kLanes];
    S::store(lanes, exp2_of<S>(S::broadcast(x)));
    return lanes[0];
}

template <class S>
void scale_row(float *row, int64_t size, float factor) {
    for (int64_t at = 0; at < size; at += S::kLanes) {
        S::store(row + at, S::mul(S::load(row + at), S::broadcast(factor)));
    }
}

// Leave only the first `visible` of 64 scores.
template <class S>
void mask_scores(float *scores, int visible) {
    const typename S::F least = S::broadcast(-kLargest);
    for (int at = 0; at < kColumns; at += S::kLanes) {
        S::store(scores + at, S::keep_first(S::load(scores + at), visible - at, least));
    }
}

// Make the scores of one query (in powers of two) weights, and raise its maximum if need be. There are 64 of each of
// `num_blocks` blocks, `stride` elements apart.
template <class S>
EDGE_VL_INLINE void weigh(float *scores, int num_blocks, int64_t stride, const Partial &partial, int64_t query,
                          int64_t head_dim) {
    using F = typename S::F;
    constexpr int kVectors = kColumns / S::kLanes;
    F largest = S::load(scores);
    for (int block = 0; block < num_blocks; ++block) {
        EDGE_VL_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            largest = S::max(largest, S::load(scores + block * stride + v * S::kLanes));
        }
    }
    float maximum = partial.maxima[query];
    float *sums = partial.sums + query * kMaxLanes;
    if (S::any_greater(largest, S::broadcast(maximum + kMaxExcess))) {
        const float raised = S::reduce_max(largest);
        const float factor = exp2_of<S>(maximum - raised);
        scale_row<S>(partial.values + query * head_dim, head_dim, factor);
        scale_row<S>(sums, S::kLanes, factor);
        partial.maxima[query] = maximum = raised;
    }
    F sum = S::load(sums);
    for (int block = 0; block < num_blocks; ++block) {
        EDGE_VL_UNROLL
        for (int v = 0; v < kVectors; ++v) {
            float *at = scores + block * stride + v * S::kLanes;
            const F weight = exp2_of<S>(S::sub(S::load(at), S::broadcast(maximum)));
            S::store(at, weight);
            sum = S::add(sum, weight);
        }
    }
    S::store(sums, sum);
}

// --- a block ---------------------------------------------------------------------------------------------------------

// Multiply queries by the key scales, and say what the zeros add to the scores.
template <class S>
void fold_queries(const HeadView &view, const float *queries, int num_queries, int64_t head_dim, const Work &work) {
    using F = typename S::F;
    const bool has_zeros = view.key_precision == EDGE_VL_KERNELS_INT4;
    for (int query = 0; query < num_queries; ++query) {
        F offset = S::zero();
        for (int64_t channel = 0; channel < head_dim; channel += S::kLanes) {
            const F loaded = S::load(queries + query * head_dim + channel);
            S::store(work.folded + query * head_dim + channel, S::mul(loaded, S::load_f16(view.key_scales + channel)));
            if (has_zeros) {
                offset = S::fma(loaded, S::load_f16(view.key_zeros + channel), offset);
            }
        }
        work.offsets[query] = has_zeros ? S::reduce_add(offset) : 0.0f;
    }
}

template <class S>
void compute_scores(const HeadView &view, const unsigned char *next, const float *queries, int num_queries,
                    int64_t head_dim, const Work &work, const float *converted) {
    using F = typename S::F;
    const bool has_codes = is_coded(view.key_precision);
    if (has_codes) {
        fold_queries<S>(view, queries, num_queries, head_dim, work);
    }
    const float *left = has_codes ? work.folded : queries;
    const auto multiply = [&](const auto &rows) {
        const auto store = [=](int row, int64_t column, F sum) {
            const F offset = S::broadcast(has_codes ? work.offsets[row] : 0.0f);
            S::store(work.scores + row * kColumns + column, S::add(sum, offset));
        };
        product<S>(left, head_dim, num_queries, head_dim, rows, 0, kColumns, store);
    };
    if (converted != nullptr) {
        multiply(RowsConverted<S>{converted, kColumns});
    } else {
        with_rows<S>(view.key_precision, view.keys, next, kColumns, multiply);
    }
}

// Convert (64, groups) float16 to (groups, 64) float32.
template <class S>
void convert_halves(const uint16_t *halves, int64_t num_groups, float *converted) {
    alignas(64) uint16_t apart[kMaxValueGroups * kColumns];
    if (num_groups > 1) {
        for (int64_t entry = 0; entry < kColumns; ++entry) {
            apart[entry] = halves[2 * entry];
            apart[kColumns + entry] = halves[2 * entry + 1];
        }
        halves = apart;
    }
    for (int64_t at = 0; at < num_groups * kColumns; at += S::kLanes) {
        S::store(converted + at, S::load_f16(halves + at));
    }
}

// Convert the value scales and zeros of a block.
template <class S>
void convert_value_scales(const HeadView &view, int64_t num_groups, const Work &work) {
    convert_halves<S>(view.value_scales, num_groups, work.scales);
    if (view.value_precision == EDGE_VL_KERNELS_INT4) {
        convert_halves<S>(view.value_zeros, num_groups, work.zeros);
    }
}

// Multiply weights by the value scales of a group, and say what the zeros add to the values.
template <class S>
void fold_weights(const HeadView &view, int num_queries, int64_t group, const Work &work) {
    using F = typename S::F;
    const float *scales = work.scales + group * kColumns, *zeros = work.zeros + group * kColumns;
    const bool has_zeros = view.value_precision == EDGE_VL_KERNELS_INT4;
    for (int query = 0; query < num_queries; ++query) {
        F offset = S::zero();
        for (int64_t entry = 0; entry < kColumns; entry += S::kLanes) {
            const F weight = S::load(work.scores + query * kColumns + entry);
            S::store(work.weights + query * kColumns + entry, S::mul(weight, S::load(scales + entry)));
            if (has_zeros) {
                offset = S::fma(weight, S::load(zeros + entry), offset);
            }
        }
        work.offsets[query] = has_zeros ? S::reduce_add(offset) : 0.0f;
    }
}

// Add the weighted values of the first `depth` entries.
template <class S>
void add_values(const HeadView &view, const unsigned char *next, int num_queries, int64_t head_dim, int64_t num_groups,
                int64_t depth, const Work &work, const float *converted, float *sums) {
    using F = typename S::F;
    const bool has_codes = is_coded(view.value_precision);
    if (has_codes) {
        convert_value_scales<S>(view, num_groups, work);
    }
    const int64_t num_runs = has_codes ? num_groups : 1;
    for (int64_t run = 0; run < num_runs; ++run) {
        if (has_codes) {
            fold_weights<S>(view, num_queries, run, work);
        }
        const float *left = has_codes ? work.weights : work.scores;
        const auto multiply = [&](const auto &rows) {
            const auto store = [=](int row, int64_t column, F sum) {
                const F offset = S::broadcast(has_codes ? work.offsets[row] : 0.0f);
                float *at = sums + row * head_dim + column;
                S::store(at, S::add(S::load(at), S::add(sum, offset)));
            };
            product<S>(left, kColumns, num_queries, depth, rows, head_dim * run / num_runs,
                       head_dim * (run + 1) / num_runs, store);
        };
        if (converted != nullptr) {
            multiply(RowsConverted<S>{converted, head_dim});
        } else {
            with_rows<S>(view.value_precision, view.values, next, head_dim, multiply);
        }
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

// Codes of which the instruction set multiplies as integers.
template <class S>
constexpr bool has_dots(int64_t precision) {
    return S::kMultipliesCodes && is_coded(precision);
}

template <class S>
EDGE_VL_INLINE void block_scores(const HeadView &view, const unsigned char *next, const float *queries, int num_queries,
                                 int64_t head_dim, const Work &work, bool is_prepared, const float *converted) {
    if constexpr (S::kMultipliesCodes) {
        if (is_coded(view.key_precision)) {
            S::compute_scores(view, next, queries, num_queries, head_dim, work, is_prepared);
            return;
        }
    }
    compute_scores<S>(view, next, queries, num_queries, head_dim, work, converted);
}

template <class S>
EDGE_VL_INLINE void block_values(const HeadView &view, const unsigned char *next, int num_queries, int64_t head_dim,
                                 int64_t num_groups, int64_t depth, const Work &work, bool is_prepared,
                                 const float *converted, float *sums) {
    if constexpr (S::kMultipliesCodes) {
        if (is_coded(view.value_precision)) {
            convert_value_scales<S>(view, num_groups, work);
            S::add_values(view, next, num_queries, head_dim, num_groups, work, is_prepared, sums);
            return;
        }
    }
    add_values<S>(view, next, num_queries, head_dim, num_groups, depth, work, converted, sums);
}

// Attend to a few blocks that all queries see whole, as they are stored. There are no more queries, times blocks, than
// kTileQueries. While keys are multiplied the values are fetched, and while those are, the keys that are read `next`.
template <class S>
void attend_directly(const KvAttention &attention, const HeadView *views, int num_blocks,
                     const HeadView *next, int num_queries, const Work &work, const Partial &partial) {
    const edge_vl_kernels_kv_model &model = *attention.model;
    const int64_t head_dim = model.head_dim, num_groups = model.num_value_groups;
    const int64_t stride = num_queries * kColumns;
    Work block_work = work;
    for (int block = 0; block < num_blocks; ++block) {
        const HeadView &view = views[block];
        block_work.scores = work.scores + block * stride;
        prefetch_bytes<2 * kColumns>(next[block].value_scales);
        block_scores<S>(view, next[block].keys, work.queries, num_queries, head_dim, block_work, false, nullptr);
    }
    for (int query = 0; query < num_queries; ++query) {
        weigh<S>(work.scores + query * kColumns, num_blocks, stride, partial, query, head_dim);
    }
    for (int block = 0; block < num_blocks; ++block) {
        block_work.scores = work.scores + block * stride;
        block_values<S>(views[block], next[block].values, num_queries, head_dim, num_groups, kBlockEntries, block_work, false,
                        nullptr, partial.values);
    }
}

// Attend to a block. Row r of the queries sees the first `first_visible + r` entries, at most `num_entries`.
template <class S>
void attend_block(const KvAttention &attention, const HeadView &view, int64_t first_visible, int64_t num_entries,
                  bool is_converted, const Work &work, const Partial &partial) {
    const edge_vl_kernels_kv_model &model = *attention.model;
    const int64_t head_dim = model.head_dim, num_groups = model.num_value_groups;
    const int64_t group_size = model.num_query_heads / model.num_kv_heads;
    const int64_t num_queries = attention.num_rows * group_size;
    const float *keys = nullptr, *values = nullptr;
    if (is_converted) {
        if constexpr (S::kMultipliesCodes) {
            S::prepare(view, head_dim, work);
        }
        if (!has_dots<S>(view.key_precision)) {
            keys = convert_rows<S>(view.key_precision, view.keys, head_dim, kColumns, work.keys);
        }
        if (!has_dots<S>(view.value_precision)) {
            values = convert_rows<S>(view.value_precision, view.values, num_entries, head_dim, work.values);
        }
    }
    for (int64_t first = 0; first < num_queries; first += kTileQueries) {
        const int64_t left = num_queries - first;
        const int count = static_cast<int>(left < kTileQueries ? left : kTileQueries);
        const float *queries = work.queries + first * head_dim;
        block_scores<S>(view, view.values, queries, count, head_dim, work, is_converted, keys);
        int64_t depth = 0;
        for (int query = 0; query < count; ++query) {
            const int64_t seen = first_visible + (first + query) / group_size;
            depth = seen < num_entries ? seen : num_entries;
            float *scores = work.scores + query * kColumns;
            if (depth < kBlockEntries) {
                mask_scores<S>(scores, static_cast<int>(depth));
            }
            weigh<S>(scores, 1, 0, partial, first + query, head_dim);
        }
        block_values<S>(view, view.keys, count, head_dim, num_groups, depth, work, is_converted, values,
                        partial.values + first * head_dim);
    }
}

// Attend to sinks: entry-major keys, so each score is a sum across registers.
template <class S>
void attend_sinks(const KvAttention &attention, const Work &work, const Partial &partial) {
    using F = typename S::F;
    const edge_vl_kernels_kv_model &model = *attention.model;
    const int64_t head_dim = model.head_dim, group_size = model.num_query_heads / model.num_kv_heads;
    const int64_t num_queries = attention.num_rows * group_size;
    const edge_vl_kernels_kv_slice &open = model.slices[(model.num_formats - 1) * model.num_layers + attention.layer];
    const int64_t row_bytes = head_dim * (open.key_precision == EDGE_VL_KERNELS_F32 ? 4 : 2);
    const int64_t last_seen = attention.first_sinks + attention.num_rows - 1;
    const int64_t num_seen = last_seen < model.num_sinks ? last_seen : model.num_sinks;
    for (int64_t sink = 0; sink < num_seen; sink += kColumns) {
        const int64_t num_entries = num_seen - sink < kColumns ? num_seen - sink : kColumns;
        const unsigned char *stored_keys = attention.sinks + sink * row_bytes;
        const unsigned char *stored_values = stored_keys + model.num_sinks * row_bytes;
        HeadView view = {};
        view.value_precision = open.value_precision;
        view.values = stored_values;
        const float *keys = convert_rows<S>(open.key_precision, stored_keys, num_entries, head_dim, work.keys);
        if (keys == nullptr) {
            keys = static_cast<const float *>(static_cast<const void *>(stored_keys));
        }
        for (int64_t first = 0; first < num_queries; first += kTileQueries) {
            const int64_t left = num_queries - first;
            const int count = static_cast<int>(left < kTileQueries ? left : kTileQueries);
            int64_t depth = 0;
            for (int query = 0; query < count; ++query) {
                const float *row = work.queries + (first + query) * head_dim;
                const int64_t seen = attention.first_sinks + (first + query) / group_size - sink;
                const int64_t visible = seen < num_entries ? seen : num_entries;
                if (visible <= 0) {  // the first rows may see none of these sinks
                    for (int64_t entry = 0; entry < num_entries; ++entry) {
                        work.scores[query * kColumns + entry] = 0.0f;
                    }
                    continue;
                }
                float *scores = work.scores + query * kColumns;
                for (int64_t entry = 0; entry < visible; ++entry) {
                    F sum = S::zero();
                    for (int64_t channel = 0; channel < head_dim; channel += S::kLanes) {
                        sum = S::fma(S::load(row + channel), S::load(keys + entry * head_dim + channel), sum);
                    }
                    scores[entry] = S::reduce_add(sum);
                }
                mask_scores<S>(scores, static_cast<int>(visible));
                weigh<S>(scores, 1, 0, partial, first + query, head_dim);
                depth = visible;
            }
            add_values<S>(view, view.values, count, head_dim, model.num_value_groups, depth, work, nullptr,
                          partial.values + first * head_dim);
        }
    }
}

template <class S>
void attend(const KvAttention *attention, float *partial_memory, void *scratch) {
    const edge_vl_kernels_kv_model &model = *attention->model;
    const int64_t num_queries = attention->num_rows * (model.num_query_heads / model.num_kv_heads);
    const Work work = work_in(scratch, num_queries, model.head_dim);
    const Partial partial = partial_in(partial_memory, num_queries, model.head_dim);
    for (int64_t at = 0; at < num_queries * (model.head_dim + kMaxLanes); ++at) {
        partial_memory[at] = 0.0f;
    }
    for (int64_t query = 0; query < num_queries; ++query) {
        partial.maxima[query] = -kLargest;
    }
    load_queries<S>(*attention, work.queries, partial.poison, model.scale * kLog2E);
    if (attention->sinks != nullptr) {
        attend_sinks<S>(*attention, work, partial);
    }
    const auto view_at = [&](int64_t block) {
        const edge_vl_kernels_kv_slice *slice =
            &model.slices[attention->formats[block] * model.num_layers + attention->layer];
        const unsigned char *page = static_cast<const unsigned char *>(attention->blocks[block]);
        return view_of(slice, page + slice->offset + attention->head * slice->head_bytes);
    };
    const HeadView own =
        attention->own == nullptr
            ? HeadView{}
            : view_of(&model.slices[(model.num_formats - 1) * model.num_layers + attention->layer], attention->own);
    const bool is_direct = attention->num_step_queries <= kMaxDirectQueries;
    int64_t block = 0;
    while (is_direct && block < attention->num_blocks) {
        HeadView views[kMaxDirectBlocks];
        HeadView next[kMaxDirectBlocks];
        int64_t count = 0, bytes = 0;
        do {
            views[count] = view_at(block + count);
            bytes += value_bytes(views[count], model.head_dim);
            ++count;
        } while (block + count < attention->num_blocks && count < kMaxDirectBlocks &&
                 (count + 1) * num_queries <= kTileQueries && bytes + bytes / count <= kMaxDirectBytes);
        block += count;
        for (int64_t index = 0; index < count; ++index) {
            next[index] = block + index < attention->num_blocks ? view_at(block + index) : own;
        }
        attend_directly<S>(*attention, views, static_cast<int>(count), next, static_cast<int>(num_queries), work,
                           partial);
    }
    for (; block < attention->num_blocks; ++block) {
        attend_block<S>(*attention, view_at(block), kBlockEntries, kBlockEntries, true, work, partial);
    }
    if (attention->own != nullptr) {
        const int64_t last_seen = attention->first_own + attention->num_rows - 1;
        const int64_t num_entries = last_seen < kBlockEntries ? last_seen : kBlockEntries;
        attend_block<S>(*attention, own, attention->first_own, num_entries, !is_direct, work, partial);
    }
}

// Join partial results, and write the context.
template <class S>
void finish(const KvAttention *attention, float *partials, int64_t num_partials, const KvContext *context) {
    using F = typename S::F;
    const edge_vl_kernels_kv_model &model = *attention->model;
    const int64_t head_dim = model.head_dim, group_size = model.num_query_heads / model.num_kv_heads;
    const int64_t num_queries = attention->num_rows * group_size, size = partial_size(num_queries, head_dim);
    const Partial total = partial_in(partials, num_queries, head_dim);
    for (int64_t query = 0; query < num_queries; ++query) {
        float *values = total.values + query * head_dim;
        float *sums = total.sums + query * kMaxLanes;
        float maximum = total.maxima[query];
        for (int64_t index = 1; index < num_partials; ++index) {
            const float other = partial_in(partials + index * size, num_queries, head_dim).maxima[query];
            maximum = other > maximum ? other : maximum;
        }
        if (num_partials > 1) {
            const float factor = exp2_of<S>(total.maxima[query] - maximum);
            scale_row<S>(values, head_dim, factor);
            scale_row<S>(sums, S::kLanes, factor);
        }
        for (int64_t index = 1; index < num_partials; ++index) {
            const Partial other = partial_in(partials + index * size, num_queries, head_dim);
            const F factor = S::broadcast(exp2_of<S>(other.maxima[query] - maximum));
            const float *other_values = other.values + query * head_dim;
            for (int64_t channel = 0; channel < head_dim; channel += S::kLanes) {
                S::store(values + channel, S::fma(factor, S::load(other_values + channel), S::load(values + channel)));
            }
            S::store(sums, S::fma(factor, S::load(other.sums + query * kMaxLanes), S::load(sums)));
        }
        const F sum = S::broadcast(S::reduce_add(S::load(sums)) + total.poison[query]);
        float *row = context->context + query / group_size * context->context_row +
                     query % group_size * context->context_head;
        for (int64_t channel = 0; channel < head_dim; channel += S::kLanes) {
            S::store(row + channel, S::div(S::load(values + channel), sum));
        }
    }
}

}  // namespace
}  // namespace edge_vl
