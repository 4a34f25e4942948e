// y = x · wᵀ with x fp32 and w bf16, the products and sums in fp32.
//
// Each element of y has one accumulator of eight lanes, whatever tile computes it: a row of y has the same bits for
// any number of rows. With few rows of x the time is that of streaming w once; with many, that of the multiply-adds.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace {

constexpr int64_t LANES = 8;
constexpr int64_t STEP = 32;             // weights in a cache line
constexpr int64_t PREFETCH = 4096;       // weights ahead: hardware prefetchers stop at the end of a page
constexpr int64_t ROWS_PER_BLOCK = 24;   // rows of w that stay in the L2 cache while all of x passes by

inline __m256 widen(const uint16_t* weights) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

inline float widen_one(uint16_t weight) { return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(weight << 16))); }

inline float sum_lanes(__m256 lanes) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    sum = _mm_hadd_ps(sum, sum);
    return _mm_cvtss_f32(_mm_hadd_ps(sum, sum));
}

// M rows of x times N rows of w, both k long, into the M × N corner of y.
template <int M, int N>
void multiply_tile(const float* x, const uint16_t* w, float* y, int64_t k, int64_t y_stride) {
    __m256 sums[M][N] = {};
    const auto step = [&](int64_t i) {
        __m256 weights[N];
        for (int n = 0; n < N; ++n) weights[n] = widen(w + n * k + i);
        for (int m = 0; m < M; ++m) {
            const __m256 inputs = _mm256_loadu_ps(x + m * k + i);
            for (int n = 0; n < N; ++n) sums[m][n] = _mm256_fmadd_ps(inputs, weights[n], sums[m][n]);
        }
    };
    int64_t i = 0;
    for (; i + STEP <= k; i += STEP) {
        // In the order of the memory, behind the tile's own rows, though the rows are read side by side.
        for (int n = 0; n < N; ++n) _mm_prefetch(w + N * (k + i) + n * STEP + PREFETCH, _MM_HINT_T0);
        for (int64_t lane = 0; lane < STEP; lane += LANES) step(i + lane);
    }
    for (; i + LANES <= k; i += LANES) step(i);
    for (int m = 0; m < M; ++m) {
        for (int n = 0; n < N; ++n) {
            float sum = sum_lanes(sums[m][n]);
            for (int64_t j = i; j < k; ++j) sum = std::fma(x[m * k + j], widen_one(w[n * k + j]), sum);
            y[m * y_stride + n] = sum;
        }
    }
}

// M rows of x times `rows` rows of w, N at a time.
template <int M, int N>
void multiply_rows(const float* x, const uint16_t* w, float* y, int64_t rows, int64_t k, int64_t y_stride) {
    int64_t n = 0;
    for (; n + N <= rows; n += N) multiply_tile<M, N>(x, w + n * k, y + n, k, y_stride);
    for (; n < rows; ++n) multiply_tile<M, 1>(x, w + n * k, y + n, k, y_stride);
}

}  // namespace

// The `parts` weights w[0], w[1], … of n[0], n[1], … rows [n, k] bf16 are used as if they were one, a part below the other.
// x: [m, k] fp32; y: [m, sum of n] fp32.
extern "C" void linear_bf16(const float* x, const uint16_t* const* w, const int64_t* n, float* y, int64_t parts,
                            int64_t m, int64_t k, int threads) {
    const int64_t y_stride = std::accumulate(n, n + parts, int64_t{0});
#pragma omp parallel num_threads(threads)
    for (int64_t part = 0, column = 0; part < parts; column += n[part], ++part) {
#pragma omp for schedule(guided) nowait
        for (int64_t first = 0; first < n[part]; first += ROWS_PER_BLOCK) {
            const int64_t rows = std::min(ROWS_PER_BLOCK, n[part] - first);
            for (int64_t row = 0; row < m; row += 4) {
                const auto multiply = m - row >= 4   ? multiply_rows<4, 3>
                                      : m - row == 3 ? multiply_rows<3, 2>
                                      : m - row == 2 ? multiply_rows<2, 2>
                                                     : multiply_rows<1, 2>;
                multiply(x + row * k, w[part] + first * k, y + row * y_stride + column + first, rows, k, y_stride);
            }
        }
    }
}
