// Rows on their way into a cache and queries on theirs to it: turned by their position, measured, stored.
//
// Only for inclusion by the kv_<isa>.cpp units; see kv_kernel.h. The loops are plain: each unit's compiler makes
// vectors of them, and the results are the same bits everywhere.

#pragma once

#include "kv_simd.h"
#include "kv_table.h"

namespace edge_vl {
namespace {

// Turn a row by its position. Source: RoFormer (arXiv 2104.09864), section 3.4.2.
inline void turn(const edge_vl_kernels_kv_model &model, int64_t position, const float *EDGE_VL_RESTRICT row,
                 float *EDGE_VL_RESTRICT turned) {
    const int64_t half = model.rotary_dim / 2;
    if (half == 0) {
        for (int64_t channel = 0; channel < model.head_dim; ++channel) {
            turned[channel] = row[channel];
        }
        return;
    }
    const float *EDGE_VL_RESTRICT cosines = model.cosines + position * half;
    const float *EDGE_VL_RESTRICT sines = model.sines + position * half;
    if (model.is_interleaved) {
        for (int64_t pair = 0; pair < half; ++pair) {
            const float first = row[2 * pair], second = row[2 * pair + 1];
            turned[2 * pair] = first * cosines[pair] - second * sines[pair];
            turned[2 * pair + 1] = second * cosines[pair] + first * sines[pair];
        }
    } else {
        for (int64_t pair = 0; pair < half; ++pair) {
            const float first = row[pair], second = row[half + pair];
            turned[pair] = first * cosines[pair] - second * sines[pair];
            turned[half + pair] = second * cosines[pair] + first * sines[pair];
        }
    }
    for (int64_t channel = 2 * half; channel < model.head_dim; ++channel) {
        turned[channel] = row[channel];
    }
}

// Return the larger of a magnitude and those of a row, as bits.
inline uint32_t largest_magnitude(const float *row, int64_t size, uint32_t largest) {
    for (int64_t at = 0; at < size; ++at) {
        const uint32_t magnitude = bits_of_float(row[at]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

inline void measure(const KvAppend *rows, KvMagnitudes *magnitudes) {
    const edge_vl_kernels_kv_model &model = *rows->model;
    alignas(64) float turned[kMaxHeadDim];
    for (int64_t row = 0; row < rows->num_rows; ++row) {
        turn(model, rows->first_position + row, rows->keys + row * rows->key_row, turned);
        magnitudes->keys = largest_magnitude(turned, model.head_dim, magnitudes->keys);
        const float *values = rows->values + row * rows->value_row;
        magnitudes->values = largest_magnitude(values, model.head_dim, magnitudes->values);
    }
}

// Store a row as float32 or float16, with a number of elements from one to the next.
template <class S>
void store_row(const float *row, int64_t size, int64_t precision, unsigned char *memory, int64_t first,
               int64_t element_stride) {
    void *untyped = memory;
    if (precision == EDGE_VL_KERNELS_F32) {
        float *target = static_cast<float *>(untyped) + first;
        for (int64_t at = 0; at < size; ++at) {
            target[at * element_stride] = row[at];
        }
        return;
    }
    alignas(64) uint16_t halves[kMaxHeadDim];
    for (int64_t at = 0; at < size; at += S::kLanes) {
        S::store_f16(halves + at, S::load(row + at));
    }
    uint16_t *target = static_cast<uint16_t *>(untyped) + first;
    for (int64_t at = 0; at < size; ++at) {
        target[at * element_stride] = halves[at];
    }
}

template <class S>
void append(const KvAppend *rows) {
    const edge_vl_kernels_kv_model &model = *rows->model;
    const edge_vl_kernels_kv_slice &slice = *rows->slice;
    const int64_t head_dim = model.head_dim;
    alignas(64) float turned[kMaxHeadDim];
    for (int64_t row = 0; row < rows->num_rows; ++row) {
        const int64_t entry = rows->first_entry + row;
        const float *values = rows->values + row * rows->value_row;
        turn(model, rows->first_position + row, rows->keys + row * rows->key_row, turned);
        if (rows->is_sinks) {  // (key before value, entry, channel)
            store_row<S>(turned, head_dim, slice.key_precision, rows->memory, entry * head_dim, 1);
            const int64_t first_value = (model.num_sinks + entry) * head_dim;
            store_row<S>(values, head_dim, slice.value_precision, rows->memory, first_value, 1);
        } else {
            store_row<S>(turned, head_dim, slice.key_precision, rows->memory, entry, kBlockEntries);
            store_row<S>(values, head_dim, slice.value_precision, rows->memory + slice.values, entry * head_dim, 1);
        }
    }
}

// Turn queries and multiply them by a factor: (rows, query heads of the head, head_dim). `poison` is 0, or NaN where a
// query is not finite: products of integers would hide that.
template <class S>
void load_queries(const KvAttention &attention, float *queries, float *poison, float factor) {
    const edge_vl_kernels_kv_model &model = *attention.model;
    const int64_t head_dim = model.head_dim, group_size = model.num_query_heads / model.num_kv_heads;
    alignas(64) float turned[kMaxHeadDim];
    for (int64_t row = 0; row < attention.num_rows; ++row) {
        for (int64_t member = 0; member < group_size; ++member) {
            const float *query = attention.queries + row * attention.query_row + member * attention.query_head;
            turn(model, attention.first_position + row, query, turned);
            const uint32_t largest = largest_magnitude(turned, head_dim, 0);
            *poison++ = largest >= 0x7f800000u ? float_of_bits(0x7fc00000u) : 0.0f;
            for (int64_t channel = 0; channel < head_dim; ++channel) {
                queries[channel] = turned[channel] * factor;
            }
            queries += head_dim;
        }
    }
}

}  // namespace
}  // namespace edge_vl
