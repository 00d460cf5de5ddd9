// C ABI of the kernels library. Plain C types only, so that any language can load it.
//
// Every size, stride and pointer is checked by the caller (kernels/edge_vl_kernels/); nothing here is checked again.
// What is not created with `_new` keeps no state; only a pool starts threads and allocates. Functions may be called from
// any number of threads at once, but only one at a time with the same pool.

#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define EDGE_VL_KERNELS_API __declspec(dllexport)
#else
#define EDGE_VL_KERNELS_API __attribute__((visibility("default")))
#endif

// Raised whenever a function below changes its arguments or meaning, or is removed.
// kernels/edge_vl_kernels/library.py holds the number that it was written for.
#define EDGE_VL_KERNELS_ABI_VERSION 2

#ifdef __cplusplus
extern "C" {
#endif

EDGE_VL_KERNELS_API int32_t edge_vl_kernels_abi_version(void);

// Look every pixel value up in its channel's table and write the channels apart.
//
//   pixels    uint8 (height, width, 3), any byte strides, negative ones too
//   table     float32 (3, 256), contiguous
//   out       float32 (3, height, width), contiguous; overlaps neither input
EDGE_VL_KERNELS_API void edge_vl_kernels_normalize_tile(const uint8_t *pixels, int64_t height, int64_t width,
                                                        int64_t row_stride, int64_t column_stride,
                                                        int64_t channel_stride, const float *table, float *out);

// --- instruction sets ------------------------------------------------------------------------------------------------

enum {
    EDGE_VL_KERNELS_ISA_SCALAR = 0,
    EDGE_VL_KERNELS_ISA_AVX2 = 1,
    EDGE_VL_KERNELS_ISA_AVX512 = 2,
    EDGE_VL_KERNELS_ISA_NEON = 3,
};

// Return 1 if this library has the instruction set and this CPU can run it, 0 if the library lacks it, -1 if the CPU or
// its operating system does.
EDGE_VL_KERNELS_API int32_t edge_vl_kernels_has_isa(int32_t isa);

// --- threads ---------------------------------------------------------------------------------------------------------

// A few threads of our own, and the scratch memory of each. The caller of a kernel works as one of them.
typedef struct edge_vl_kernels_pool edge_vl_kernels_pool;

// Return a pool of `num_threads` threads in all (the caller included, so 1 starts none) whose kernels use one instruction
// set; null if memory or threads cannot be had or the instruction set is not there.
EDGE_VL_KERNELS_API edge_vl_kernels_pool *edge_vl_kernels_pool_new(int32_t isa, int32_t num_threads);

EDGE_VL_KERNELS_API void edge_vl_kernels_pool_free(edge_vl_kernels_pool *pool);

// --- key/value caches ------------------------------------------------------------------------------------------------
// The format is described in kernels/README.md and laid out by kernels/edge_vl_kernels/kv_format.py.

enum {
    EDGE_VL_KERNELS_F32 = 0,
    EDGE_VL_KERNELS_F16 = 1,
    EDGE_VL_KERNELS_INT8 = 2,
    EDGE_VL_KERNELS_INT4 = 3,
};

// A layer's part of a page, in bytes.
typedef struct {
    int64_t key_precision, value_precision;
    int64_t offset, head_bytes;
    int64_t key_scales, key_zeros, values, value_scales, value_zeros;  // within a head
} edge_vl_kernels_kv_slice;

// What all caches of a model have in common.
typedef struct {
    int64_t num_layers, num_query_heads, num_kv_heads, head_dim, num_value_groups;
    int64_t num_sinks;
    int64_t num_formats;                     // of pages; the last one is that of open blocks
    const edge_vl_kernels_kv_slice *slices;  // (num_formats, num_layers)
    float scale;                             // of the scores, 1 / sqrt(head_dim) as a rule
    int32_t rotary_dim;                      // channels turned by position; 0: keys and queries come turned already
    int32_t is_interleaved;                  // pairs are (0, 1), (2, 3), ...; otherwise (i, i + rotary_dim / 2)
    const float *cosines, *sines;            // (number of positions, rotary_dim / 2)
} edge_vl_kernels_kv_model;

// One sequence's part of a step. Blocks are numbered from the sinks on.
typedef struct {
    int64_t num_entries;     // before the step
    int64_t num_rows;        // appended by it, at least 1
    int64_t first_position;  // of the first one; the others follow
    void *sinks;             // null if the model has none
    int64_t num_closed;      // blocks closed after the step, those that it closes included
    void *const *blocks;     // their pages
    const int32_t *formats;  // and which format each has
    // The uncompressed pages of the blocks that get rows, or that the step closes or leaves open: block
    // `num_closed before the step` onwards, up to the open one. Two of them may be the same page if the block of the
    // former is closed elsewhere. A block whose page in `blocks` is its page here needs no compression.
    void *const *open_pages;
} edge_vl_kernels_kv_sequence;

// The rows of a step, of one sequence after the other. Strides are in elements; channels lie side by side.
typedef struct {
    const float *queries, *keys, *values;  // (rows, heads, head_dim)
    float *context;                        // (rows, query heads, head_dim)
    int64_t query_row, query_head, key_row, key_head, value_row, value_head, context_row, context_head;
} edge_vl_kernels_kv_rows;

enum {
    EDGE_VL_KERNELS_OK = 0,
    EDGE_VL_KERNELS_NOT_FINITE = 1,  // a key or value is NaN or infinite
    EDGE_VL_KERNELS_TOO_LARGE = 2,   // a key or value is beyond float16 where that is how it is kept
    EDGE_VL_KERNELS_NO_MEMORY = 3,   // scratch memory cannot be had
};

// Append rows to one layer of caches and attend to all entries up to each row's own.
//
// Rows behind a full open block close it. `rows->context` may be null: then nothing is attended to. After an error the
// pages that were open before the step still hold what they held below `num_entries`.
EDGE_VL_KERNELS_API int32_t edge_vl_kernels_kv_step(edge_vl_kernels_pool *pool, const edge_vl_kernels_kv_model *model,
                                                    const edge_vl_kernels_kv_sequence *sequences,
                                                    int64_t num_sequences, int64_t layer,
                                                    const edge_vl_kernels_kv_rows *rows);

// Compress one layer of an open, full block into a page of another format.
EDGE_VL_KERNELS_API void edge_vl_kernels_kv_close(edge_vl_kernels_pool *pool, const edge_vl_kernels_kv_model *model,
                                                  int64_t format, int64_t layer, const void *open_page, void *page);

// Write the entries `first` to `first + count` of one layer of a page as float32 (count, kv heads, head_dim).
EDGE_VL_KERNELS_API void edge_vl_kernels_kv_read(edge_vl_kernels_pool *pool, const edge_vl_kernels_kv_model *model,
                                                 int64_t format, int64_t layer, const void *page, int64_t first,
                                                 int64_t count, float *keys, float *values);

#ifdef __cplusplus
}
#endif
