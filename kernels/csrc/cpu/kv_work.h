// Where a head's arrays are in a page, and what a thread computes with: in scratch memory.
//
// Only for inclusion by the kv_<isa>.cpp units; see kv_kernel.h.

#pragma once

#include "kv_simd.h"
#include "kv_table.h"

namespace edge_vl {
namespace {

constexpr int kColumns = static_cast<int>(kBlockEntries);
// Queries whose scores are kept at a time.
constexpr int kTileQueries = 24;

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

}  // namespace
}  // namespace edge_vl
