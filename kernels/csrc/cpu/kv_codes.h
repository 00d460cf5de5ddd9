// Compressing a full block, and restoring entries: the same bytes as the reference (kv_codes.py).
//
// Only for inclusion by the kv_<isa>.cpp units; see kv_kernel.h.

#pragma once

#include "kv_kernel.h"

namespace edge_vl {
namespace {

constexpr int64_t kMaxRun = kMaxHeadDim;  // elements that are compressed together, at most

// Round up to float16, never to -0; not for numbers beyond it.
inline uint16_t half_above(float value) {
    const uint16_t nearest = half_of_float(value);
    if (!(float_of_half(nearest) < value)) {
        return nearest == 0x8000u ? 0 : nearest;
    }
    return static_cast<uint16_t>(nearest & 0x8000u ? nearest - 1 : nearest + 1);
}

// Round down to float16, never to -0; not for numbers beyond it.
inline uint16_t half_below(float value) {
    uint16_t half = half_of_float(value);
    if (float_of_half(half) > value) {
        half = static_cast<uint16_t>(half & 0x8000u ? half + 1 : (half == 0 ? 0x8001u : half - 1u));
    }
    return half == 0x8000u ? 0 : half;
}

// Make codes of `size` elements that share a scale.
template <class S>
void quantize_int8(const float *elements, int64_t size, int8_t *codes, uint16_t *scale_half) {
    using F = typename S::F;
    F largest = S::zero();
    for (int64_t at = 0; at < size; at += S::kLanes) {
        const F element = S::load(elements + at);
        largest = S::max(largest, S::max(element, S::sub(S::zero(), element)));
    }
    *scale_half = half_above(S::reduce_max(largest) / 127.0f);
    const float scale = float_of_half(*scale_half);
    const F divisor = S::broadcast(scale == 0.0f ? kLargest : scale);
    for (int64_t at = 0; at < size; at += S::kLanes) {
        const F code = S::round(S::div(S::load(elements + at), divisor));
        S::store_i8(codes + at, S::max(S::min(code, S::broadcast(127.0f)), S::broadcast(-127.0f)));
    }
}

template <class S>
void quantize_int4(const float *elements, int64_t size, int8_t *codes, uint16_t *scale_half, uint16_t *zero_half) {
    using F = typename S::F;
    F least = S::load(elements), largest = least;
    for (int64_t at = S::kLanes; at < size; at += S::kLanes) {
        const F element = S::load(elements + at);
        least = S::min(least, element);
        largest = S::max(largest, element);
    }
    *zero_half = half_below(-S::reduce_max(S::sub(S::zero(), least)));
    const float zero = float_of_half(*zero_half);
    *scale_half = half_above((S::reduce_max(largest) - zero) / 15.0f);
    const float scale = float_of_half(*scale_half);
    const F divisor = S::broadcast(scale == 0.0f ? kLargest : scale);
    for (int64_t at = 0; at < size; at += S::kLanes) {
        const F code = S::round(S::div(S::sub(S::load(elements + at), S::broadcast(zero)), divisor));
        S::store_i8(codes + at, S::max(S::min(code, S::broadcast(15.0f)), S::zero()));
    }
}

// Compress `num_rows` rows, each of which has `num_groups` scales, into a precision.
template <class S>
void compress_rows(int64_t from, const unsigned char *memory, int64_t num_rows, int64_t size, int64_t num_groups,
                   int64_t to, unsigned char *target, uint16_t *scales, uint16_t *zeros) {
    const int64_t group = size / num_groups;
    alignas(64) float elements[kMaxRun];
    alignas(64) int8_t codes[kMaxRun];
    with_rows<S>(from, memory, memory, size, [&](const auto &rows) {
        for (int64_t row = 0; row < num_rows; ++row) {
            for (int64_t at = 0; at < size; at += S::kLanes) {
                S::store(elements + at, rows.load(row, at));
            }
            if (!is_coded(to)) {
                store_row<S>(elements, size, to, target, row * size, 1);
                continue;
            }
            for (int64_t index = 0; index < num_groups; ++index) {
                const int64_t place = row * num_groups + index;
                if (to == EDGE_VL_KERNELS_INT8) {
                    quantize_int8<S>(elements + index * group, group, codes + index * group, scales + place);
                } else {
                    quantize_int4<S>(elements + index * group, group, codes + index * group, scales + place,
                                     zeros + place);
                }
            }
            if (to == EDGE_VL_KERNELS_INT8) {
                memcpy(target + row * size, codes, static_cast<size_t>(size));
                continue;
            }
            const int64_t half = size / 2;
            for (int64_t at = 0; at < half; ++at) {
                target[row * half + at] = static_cast<unsigned char>(codes[at] | codes[half + at] << 4);
            }
        }
    });
}

inline uint16_t *mutable_halves_at(unsigned char *memory, int64_t offset) {
    return static_cast<uint16_t *>(static_cast<void *>(memory + offset));
}

template <class S>
void close(const edge_vl_kernels_kv_model *model, const edge_vl_kernels_kv_slice *from, const unsigned char *open_head,
           const edge_vl_kernels_kv_slice *to, unsigned char *head) {
    compress_rows<S>(from->key_precision, open_head, model->head_dim, kBlockEntries, 1, to->key_precision, head,
                     mutable_halves_at(head, to->key_scales), mutable_halves_at(head, to->key_zeros));
    compress_rows<S>(from->value_precision, open_head + from->values, kBlockEntries, model->head_dim,
                     model->num_value_groups, to->value_precision, head + to->values,
                     mutable_halves_at(head, to->value_scales), mutable_halves_at(head, to->value_zeros));
}

template <class S>
void read(const edge_vl_kernels_kv_model *model, const edge_vl_kernels_kv_slice *slice, const unsigned char *head,
          int64_t first, int64_t count, int64_t stride, float *keys, float *values) {
    const HeadView view = view_of(slice, head);
    const int64_t head_dim = model->head_dim, group = head_dim / model->num_value_groups;
    alignas(64) float row[kMaxRun];
    with_rows<S>(view.key_precision, view.keys, view.keys, kBlockEntries, [&](const auto &rows) {
        for (int64_t channel = 0; channel < head_dim; ++channel) {
            for (int64_t entry = 0; entry < kBlockEntries; entry += S::kLanes) {
                S::store(row + entry, rows.at(entry).load(channel, 0));
            }
            const bool has_zeros = view.key_precision == EDGE_VL_KERNELS_INT4;
            const float scale = is_coded(view.key_precision) ? float_of_half(view.key_scales[channel]) : 1.0f;
            const float zero = has_zeros ? float_of_half(view.key_zeros[channel]) : 0.0f;
            for (int64_t entry = 0; entry < count; ++entry) {
                const float scaled = row[first + entry] * scale;
                keys[entry * stride + channel] = has_zeros ? scaled + zero : scaled;
            }
        }
    });
    with_rows<S>(view.value_precision, view.values, view.values, head_dim, [&](const auto &rows) {
        for (int64_t entry = 0; entry < count; ++entry) {
            for (int64_t channel = 0; channel < head_dim; channel += S::kLanes) {
                S::store(row + channel, rows.at(channel).load(first + entry, 0));
            }
            for (int64_t channel = 0; channel < head_dim; ++channel) {
                const int64_t place = (first + entry) * model->num_value_groups + channel / group;
                const bool has_zeros = view.value_precision == EDGE_VL_KERNELS_INT4;
                const float scale = is_coded(view.value_precision) ? float_of_half(view.value_scales[place]) : 1.0f;
                const float zero = has_zeros ? float_of_half(view.value_zeros[place]) : 0.0f;
                const float scaled = row[channel] * scale;
                values[entry * stride + channel] = has_zeros ? scaled + zero : scaled;
            }
        }
    });
}

template <class S>
constexpr KvTable make_table() {
    return {measure, append<S>, close<S>, read<S>, partial_size, scratch_bytes, attend<S>, finish<S>};
}

}  // namespace
}  // namespace edge_vl
