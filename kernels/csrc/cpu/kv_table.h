// What the key/value kernels of one instruction set look like from outside: plain structures and a table of functions.

#pragma once

#include "../edge_vl_kernels.h"

namespace edge_vl {

constexpr int64_t kBlockEntries = 64;
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kMaxValueGroups = 2;

// Rows of one sequence that are attended to together: those that go into the same block, or into the sinks.
struct KvAttention {
    const edge_vl_kernels_kv_model *model;
    int64_t layer;
    int64_t head;  // key/value head; its query heads are attended together

    int64_t num_rows;
    int64_t num_step_queries;  // of all rows that are attended to together, those of other tasks included
    const float *queries;   // of the first of these rows and query heads, not turned yet
    int64_t query_row, query_head;
    int64_t first_position;

    // Row r sees the first `first_sinks + r` sinks, all there are at most.
    const unsigned char *sinks;  // of this layer and head; null: none are attended to
    int64_t first_sinks;

    // All rows see all of these closed blocks.
    void *const *blocks;
    const int32_t *formats;
    int64_t num_blocks;

    // Row r sees the first `first_own + r` entries of its own block.
    const unsigned char *own;  // this layer's and head's part of the open page; null: not attended to
    int64_t first_own;
};

// Where an attention is written to once all of its entries have been seen.
struct KvContext {
    float *context;
    int64_t context_row, context_head;
};

// Entries of one head and rows that go there.
struct KvAppend {
    const edge_vl_kernels_kv_model *model;
    const edge_vl_kernels_kv_slice *slice;  // of the open page; its precisions are those of sinks, too
    unsigned char *memory;                  // of the head in the open page or among the sinks
    int64_t is_sinks;
    int64_t first_entry, num_rows, first_position;
    const float *keys, *values;
    int64_t key_row, value_row;
};

// The largest magnitudes of keys and values, as bits of float32 without the sign: those of infinity and NaN are larger
// than those of any number.
struct KvMagnitudes {
    uint32_t keys, values;
};

struct KvTable {
    // Turn the keys and look at all rows of one head; nothing is written but the result, which only grows.
    void (*measure)(const KvAppend *rows, KvMagnitudes *magnitudes);

    // Turn the keys and write the rows of one head to the page or the sinks.
    void (*append)(const KvAppend *rows);

    // Compress a full block of one head.
    void (*close)(const edge_vl_kernels_kv_model *model, const edge_vl_kernels_kv_slice *from,
                  const unsigned char *open_head, const edge_vl_kernels_kv_slice *to, unsigned char *head);

    // Restore entries of one head: float32, `stride` elements from one entry to the next.
    void (*read)(const edge_vl_kernels_kv_model *model, const edge_vl_kernels_kv_slice *slice,
                 const unsigned char *head, int64_t first, int64_t count, int64_t stride, float *keys, float *values);

    // Elements of float32 that a partial result of `num_queries` rows and query heads takes; a multiple of 16.
    int64_t (*partial_size)(int64_t num_queries, int64_t head_dim);

    // Bytes of scratch memory, aligned to 64, that `attend` needs beside the partial result.
    int64_t (*scratch_bytes)(int64_t num_queries, int64_t head_dim);

    // Attend to all that `attention` names.
    void (*attend)(const KvAttention *attention, float *partial, void *scratch);

    // Join partial results that lie behind one another, and write the context. The first one is used up.
    void (*finish)(const KvAttention *attention, float *partials, int64_t num_partials, const KvContext *context);
};

extern const KvTable kKvScalar;
extern const KvTable kKvAvx2;
extern const KvTable kKvAvx512;
extern const KvTable kKvNeon;

}  // namespace edge_vl
