// The key/value kernels for AVX2 with FMA and F16C.

#include <immintrin.h>

#include "kv_codes.h"

namespace edge_vl {
namespace {

struct Avx2 {
    static constexpr int kLanes = 8, kTileRows = 6, kTileVectors = 2;
    static constexpr bool kMultipliesCodes = false;
    using F = __m256;

    static F zero() { return _mm256_setzero_ps(); }
    static F broadcast(float value) { return _mm256_set1_ps(value); }
    static F load(const float *from) { return _mm256_loadu_ps(from); }
    static F load_f16(const uint16_t *from) {
        return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i *>(static_cast<const void *>(from))));
    }
    static __m128i load_8_bytes(const void *from) { return _mm_loadl_epi64(static_cast<const __m128i *>(from)); }
    static F load_i8(const int8_t *from) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(from))); }
    static F load_u4(const uint8_t *from, int shift) {
        const __m256i shifted = _mm256_srl_epi32(_mm256_cvtepu8_epi32(load_8_bytes(from)), _mm_cvtsi32_si128(shift));
        return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)));
    }
    static void store(float *to, F x) { _mm256_storeu_ps(to, x); }
    static void store_f16(uint16_t *to, F x) {
        const __m128i halves = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128(static_cast<__m128i *>(static_cast<void *>(to)), halves);
    }
    static void store_i8(int8_t *to, F x) {
        const __m256i whole = _mm256_cvtps_epi32(x);
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
        _mm_storel_epi64(static_cast<__m128i *>(static_cast<void *>(to)), _mm_packs_epi16(words, words));
    }

    static F add(F x, F y) { return _mm256_add_ps(x, y); }
    static F sub(F x, F y) { return _mm256_sub_ps(x, y); }
    static F mul(F x, F y) { return _mm256_mul_ps(x, y); }
    static F div(F x, F y) { return _mm256_div_ps(x, y); }
    static F max(F x, F y) { return _mm256_max_ps(x, y); }
    static F min(F x, F y) { return _mm256_min_ps(x, y); }
    static F fma(F x, F y, F z) { return _mm256_fmadd_ps(x, y, z); }
    static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static F limit_exponent(F x) { return _mm256_max_ps(x, broadcast(-127.0f)); }
    static F scale(F x, F exponent) {
        const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
        return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
    }
    static F keep_first(F x, int count, F other) {
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i kept = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes);
        return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(kept));
    }
    static bool any_greater(F x, F y) { return _mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GT_OQ)) != 0; }
    static float reduce_max(F x) {
        __m128 largest = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        largest = _mm_max_ps(largest, _mm_movehl_ps(largest, largest));
        return _mm_cvtss_f32(_mm_max_ss(largest, _mm_movehdup_ps(largest)));
    }
    static float reduce_add(F x) {
        __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
    }
};

}  // namespace

extern const KvTable kKvAvx2 = make_table<Avx2>();

}  // namespace edge_vl
