// Attention over key/value blocks, for any instruction set: templates over a structure `S` of vector operations, which
// kv_simd.h describes.
//
// Only for inclusion by the kv_<isa>.cpp units. Everything is in an anonymous namespace: code that was compiled for one
// instruction set must not be linked into the unit of another.
//
// All products are of the same kind: rows of queries times the channels of keys, rows of weights times the entries of
// values. A tile of such a product stays in registers. Keys are channel-major, so that no sum runs across a register;
// their scales, per channel, are multiplied into queries, and those of values, per entry, into weights (KIVI, arXiv
// 2402.02750).

#pragma once

#include "kv_product.h"
#include "kv_rows.h"
#include "kv_softmax.h"

namespace edge_vl {
namespace {

// Up to so many queries read a block as it is stored; for more of them it is converted once.
constexpr int64_t kMaxDirectQueries = 8;
// Such queries read several blocks at a time, as many as leave the first-level cache room: what each block costs beside
// its products are long chains of small operations, and those of several blocks overlap.
constexpr int64_t kMaxDirectBlocks = 4;
constexpr int64_t kMaxDirectBytes = 16384;  // of values
constexpr float kLog2E = 1.44269504088896340736f;

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

// Compute scores of the first `num_entries` entries or a few more.
template <class S>
void compute_scores(const HeadView &view, const unsigned char *next, const float *queries, int num_queries,
                    int64_t head_dim, int64_t num_entries, const Work &work, const float *converted) {
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
        const int num_columns = num_entries <= kColumns / 2 ? kColumns / 2 : kColumns;
        product<S>(left, head_dim, num_queries, head_dim, rows, 0, num_columns, store);
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

// Codes of which the instruction set multiplies as integers.
template <class S>
constexpr bool has_dots(int64_t precision) {
    return S::kMultipliesCodes && is_coded(precision);
}

template <class S>
EDGE_VL_INLINE void block_scores(const HeadView &view, const unsigned char *next, const float *queries, int num_queries,
                                 int64_t head_dim, int64_t num_entries, const Work &work, bool is_prepared,
                                 const float *converted) {
    if constexpr (S::kMultipliesCodes) {
        if (is_coded(view.key_precision)) {
            S::compute_scores(view, next, queries, num_queries, head_dim, work, is_prepared);
            return;
        }
    }
    compute_scores<S>(view, next, queries, num_queries, head_dim, num_entries, work, converted);
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

// --- attention -------------------------------------------------------------------------------------------------------

// Attend to a few blocks that all queries see whole, as they are stored. There are no more queries, times blocks, than
// kTileQueries. While keys are multiplied the values are fetched, and while those are, the keys that are read `next`.
template <class S>
void attend_directly(const KvAttention &attention, const HeadView *views, int num_blocks,
                     const unsigned char *const *next, int num_queries, const Work &work, const Partial &partial) {
    const edge_vl_kernels_kv_model &model = *attention.model;
    const int64_t head_dim = model.head_dim, num_groups = model.num_value_groups;
    const int64_t stride = num_queries * kColumns;
    Work block_work = work;
    for (int block = 0; block < num_blocks; ++block) {
        const HeadView &view = views[block];
        block_work.scores = work.scores + block * stride;
        prefetch_bytes<2 * kColumns>(view.value_scales);
        block_scores<S>(view, view.values, work.queries, num_queries, head_dim, kBlockEntries, block_work, false,
                        nullptr);
    }
    for (int query = 0; query < num_queries; ++query) {
        weigh<S>(work.scores + query * kColumns, num_blocks, stride, partial, query, head_dim);
    }
    for (int block = 0; block < num_blocks; ++block) {
        block_work.scores = work.scores + block * stride;
        block_values<S>(views[block], next[block], num_queries, head_dim, num_groups, kBlockEntries, block_work, false,
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
        block_scores<S>(view, view.values, queries, count, head_dim, num_entries, work, is_converted, keys);
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
    const bool is_direct = attention->num_step_queries <= kMaxDirectQueries;
    int64_t block = 0;
    while (is_direct && block < attention->num_blocks) {
        HeadView views[kMaxDirectBlocks];
        const unsigned char *next[kMaxDirectBlocks];
        int64_t count = 0, bytes = 0;
        do {
            views[count] = view_at(block + count);
            bytes += value_bytes(views[count], model.head_dim);
            ++count;
        } while (block + count < attention->num_blocks && count < kMaxDirectBlocks &&
                 (count + 1) * num_queries <= kTileQueries && bytes + bytes / count <= kMaxDirectBytes);
        block += count;
        for (int64_t index = 0; index < count; ++index) {
            const bool is_last = block + index >= attention->num_blocks;
            next[index] = is_last ? (attention->own != nullptr ? attention->own : views[index].keys)
                                  : view_at(block + index).keys;
        }
        attend_directly<S>(*attention, views, static_cast<int>(count), next, static_cast<int>(num_queries), work,
                           partial);
    }
    for (; block < attention->num_blocks; ++block) {
        attend_block<S>(*attention, view_at(block), kBlockEntries, kBlockEntries, true, work, partial);
    }
    if (attention->own != nullptr) {
        const HeadView own =
            view_of(&model.slices[(model.num_formats - 1) * model.num_layers + attention->layer], attention->own);
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
