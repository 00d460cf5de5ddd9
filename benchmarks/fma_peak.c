// Fused multiply-adds on registers alone: what the arithmetic units can do. Compiled by benchmarks/roofline.py.

#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
#define CHAINS 12  // enough to hide the latency, few enough for sixteen registers

typedef float vector __attribute__((vector_size(4 * WIDTH)));

// Return how many floating-point operations `rounds` rounds are.
long long fma_peak(long long rounds) {
    vector chains[CHAINS];
    vector factor, addend;
    for (int lane = 0; lane < WIDTH; lane++) {
        factor[lane] = 0.999f;
        addend[lane] = 0.001f;
        for (int chain = 0; chain < CHAINS; chain++) chains[chain][lane] = (float)(chain + lane);
    }
    for (long long round = 0; round < rounds; round++) {
        for (int chain = 0; chain < CHAINS; chain++) chains[chain] = chains[chain] * factor + addend;
    }
    // The result must look used.
    volatile float sink = 0;
    for (int chain = 0; chain < CHAINS; chain++) sink += chains[chain][0];
    return rounds * CHAINS * WIDTH * 2;
}
