// Which instruction sets this library has, and which of them this CPU and its operating system can run.
//
// CMakeLists.txt compiles a unit with a list of CPU features, and gives this file the same list: a unit is run only
// where every feature that its compiler was allowed to use is there.

#include "../edge_vl_kernels.h"

#if defined(_MSC_VER)
#include <immintrin.h>
#include <intrin.h>
#elif defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace {

#if defined(EDGE_VL_KERNELS_AVX2_FEATURES) || defined(EDGE_VL_KERNELS_AVX512_FEATURES)

struct Registers {
    uint32_t eax, ebx, ecx, edx;
};

// Ask the CPU; all zero where it does not know the question.
Registers cpuid(uint32_t leaf, uint32_t subleaf) {
    Registers registers = {0, 0, 0, 0};
#if defined(_MSC_VER)
    int values[4];
    __cpuid(values, static_cast<int>(leaf & 0x80000000u));
    if (static_cast<uint32_t>(values[0]) >= leaf) {
        __cpuidex(values, static_cast<int>(leaf), static_cast<int>(subleaf));
        registers = {static_cast<uint32_t>(values[0]), static_cast<uint32_t>(values[1]),
                     static_cast<uint32_t>(values[2]), static_cast<uint32_t>(values[3])};
    }
#else
    __get_cpuid_count(leaf, subleaf, &registers.eax, &registers.ebx, &registers.ecx, &registers.edx);
#endif
    return registers;
}

// Which registers the operating system saves when it switches threads: XCR0, or 0 if it saves none of the new ones.
uint64_t saved_registers() {
    constexpr uint32_t kOsxsave = 1u << 27;
    if (!(cpuid(1, 0).ecx & kOsxsave)) {
        return 0;
    }
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<uint64_t>(high) << 32) | low;
#endif
}

// Features by the names that GCC's and Clang's -m have for them. Source: Intel's manual, volume 2A, CPUID, and AMD's,
// volume 3, appendix E.
struct Cpu {
    static bool has(uint32_t bits, int bit) { return (bits >> bit) & 1u; }
    static bool has_avx2() { return has(cpuid(1, 0).ecx, 28) && has(cpuid(7, 0).ebx, 5); }  // AVX and AVX2
    static bool has_fma() { return has(cpuid(1, 0).ecx, 12); }
    static bool has_f16c() { return has(cpuid(1, 0).ecx, 29); }
    static bool has_bmi() { return has(cpuid(7, 0).ebx, 3); }
    static bool has_bmi2() { return has(cpuid(7, 0).ebx, 8); }
    static bool has_lzcnt() { return has(cpuid(0x80000001u, 0).ecx, 5); }
    static bool has_movbe() { return has(cpuid(1, 0).ecx, 22); }
    static bool has_avx512f() { return has(cpuid(7, 0).ebx, 16); }
    static bool has_avx512dq() { return has(cpuid(7, 0).ebx, 17); }
    static bool has_avx512cd() { return has(cpuid(7, 0).ebx, 28); }
    static bool has_avx512bw() { return has(cpuid(7, 0).ebx, 30); }
    static bool has_avx512vl() { return has(cpuid(7, 0).ebx, 31); }
    static bool has_avx512vbmi() { return has(cpuid(7, 0).ecx, 1); }
    static bool has_avx512vnni() { return has(cpuid(7, 0).ecx, 11); }
    static bool has_avx512bf16() { return has(cpuid(7, 1).eax, 5); }
};

#endif

#define EDGE_VL_FEATURE(name) &&Cpu::has_##name()

#if defined(EDGE_VL_KERNELS_AVX2_FEATURES)
bool can_run_avx2() {
    constexpr uint64_t kVectors = 0x6;  // SSE and AVX registers
    return (saved_registers() & kVectors) == kVectors EDGE_VL_KERNELS_AVX2_FEATURES;
}
#endif

#if defined(EDGE_VL_KERNELS_AVX512_FEATURES)
bool can_run_avx512() {
    constexpr uint64_t kVectors = 0xe6;  // SSE and AVX registers, masks, the upper halves and the upper 16
    return (saved_registers() & kVectors) == kVectors EDGE_VL_KERNELS_AVX512_FEATURES;
}
#endif

}  // namespace

extern "C" int32_t edge_vl_kernels_has_isa(int32_t isa) {
    switch (isa) {
        case EDGE_VL_KERNELS_ISA_SCALAR:
            return 1;
#if defined(EDGE_VL_KERNELS_AVX2_FEATURES)
        case EDGE_VL_KERNELS_ISA_AVX2:
            return can_run_avx2() ? 1 : -1;
#endif
#if defined(EDGE_VL_KERNELS_AVX512_FEATURES)
        case EDGE_VL_KERNELS_ISA_AVX512:
            return can_run_avx512() ? 1 : -1;
#endif
#if defined(EDGE_VL_KERNELS_NEON_FEATURES)
        case EDGE_VL_KERNELS_ISA_NEON:
            return 1;  // part of every AArch64 CPU
#endif
        default:
            return 0;
    }
}
