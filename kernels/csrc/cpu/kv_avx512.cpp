// The key/value kernels for AVX-512 with VNNI and VBMI: Intel since Ice Lake, AMD since Zen 4.

// GCC 12 calls the undefined registers of its own header uninitialised (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "kv_codes.h"
#include "kv_vnni.h"

namespace edge_vl {
namespace {

struct Avx512 : CodeProducts {
    static constexpr int kLanes = 16, kTileRows = 6, kTileVectors = 4;
    using F = __m512;

    static F zero() { return _mm512_setzero_ps(); }
    static F broadcast(float value) { return _mm512_set1_ps(value); }
    static F load(const float *from) { return _mm512_loadu_ps(from); }
    static F load_f16(const uint16_t *from) { return load_halves(from); }
    static F load_i8(const int8_t *from) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16_bytes(from))); }
    static F load_u4(const uint8_t *from, int shift) {
        const __m512i shifted = _mm512_srl_epi32(_mm512_cvtepu8_epi32(load_16_bytes(from)), _mm_cvtsi32_si128(shift));
        return _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(15)));
    }
    static void store(float *to, F x) { _mm512_storeu_ps(to, x); }
    static void store_f16(uint16_t *to, F x) {
        const __m256i halves = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_storeu_si256(static_cast<__m256i *>(static_cast<void *>(to)), halves);
    }
    static void store_i8(int8_t *to, F x) {
        const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x));
        _mm_storeu_si128(static_cast<__m128i *>(static_cast<void *>(to)), bytes);
    }

    static F add(F x, F y) { return _mm512_add_ps(x, y); }
    static F sub(F x, F y) { return _mm512_sub_ps(x, y); }
    static F mul(F x, F y) { return _mm512_mul_ps(x, y); }
    static F div(F x, F y) { return _mm512_div_ps(x, y); }
    static F max(F x, F y) { return _mm512_max_ps(x, y); }
    static F min(F x, F y) { return _mm512_min_ps(x, y); }
    static F fma(F x, F y, F z) { return _mm512_fmadd_ps(x, y, z); }
    static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static F limit_exponent(F x) { return x; }  // `scale` takes any
    static F scale(F x, F exponent) {
        return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(exponent, broadcast(-127.0f), _CMP_GT_OQ), x, exponent);
    }
    static F keep_first(F x, int count, F other) {
        const int kept = count < 0 ? 0 : (count > kLanes ? kLanes : count);
        return _mm512_mask_mov_ps(other, static_cast<__mmask16>((1u << kept) - 1u), x);
    }
    static bool any_greater(F x, F y) { return _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ) != 0; }
    static float reduce_max(F x) { return _mm512_reduce_max_ps(x); }
    static float reduce_add(F x) { return _mm512_reduce_add_ps(x); }
};

}  // namespace

extern const KvTable kKvAvx512 = make_table<Avx512>();

}  // namespace edge_vl
