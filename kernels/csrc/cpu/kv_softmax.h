// The softmax of attention, a few entries at a time.
//
// Only for inclusion by the kv_<isa>.cpp units; see kv_kernel.h.
//
// Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867); FlashAttention
// (arXiv 2205.14135); partial results that are joined at the end: Flash-Decoding (Dao et al., 2023).

#pragma once

#include "kv_work.h"

namespace edge_vl {
namespace {

// The running maximum of a softmax is raised when a score is so far above it (in powers of two): until then weights
// above 1 do no harm, and sums need no correction.
constexpr float kMaxExcess = 8.0f;

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

}  // namespace
}  // namespace edge_vl
