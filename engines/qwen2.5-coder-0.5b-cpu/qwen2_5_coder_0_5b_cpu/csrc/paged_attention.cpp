// Grouped-query attention over the paged KV cache: fp32, any number of query tokens per sequence, causal by position.
//
// A work item is a few consecutive tokens of one sequence and one KV head. It walks the sequence's blocks once and
// keeps a running softmax per row; a row is one query head of one token. No row's sums depend on which rows it
// shares an item with, so prefill, chunked prefill and decode give the same bits.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "constants.h"

// glibc's vector expf (libmvec); its headers offer it to the vectoriser only under -ffast-math.
#pragma omp declare simd simdlen(8) notinbranch
extern "C" float expf(float) noexcept;

namespace {

constexpr int LANES = 8;
constexpr int GROUP = NUM_HEADS / NUM_KV_HEADS;  // query heads that read the same KV head
constexpr int TILE = std::max(1, 32 / GROUP);    // tokens of one work item
constexpr int KEY_STRIDE = NUM_KV_HEADS * HEAD_DIM;
constexpr float NEVER = -std::numeric_limits<float>::infinity();
static_assert(NUM_HEADS % NUM_KV_HEADS == 0, "every KV head must serve the same number of query heads");
static_assert(HEAD_DIM % LANES == 0 && BLOCK_SIZE % 4 == 0, "the kernel has no code for ragged vectors");

struct Tile {
    const int32_t* blocks;  // of the sequence, in order
    int first_token;        // row of query and out
    int position;           // of the first token in its sequence
    int tokens;
};

// The softmax of one row over the keys seen so far; `out` holds the weighted sum of their values.
struct Row {
    const float* query;
    float* out;
    int position;
    float peak = NEVER;
    float total = 0.0f;
};

// scores[j] = query · key j, for four keys.
inline __m128 dot_four(const float* query, const float* keys) {
    __m256 sums[4] = {};
    for (int d = 0; d < HEAD_DIM; d += LANES) {
        const __m256 q = _mm256_loadu_ps(query + d);
        for (int j = 0; j < 4; ++j) sums[j] = _mm256_fmadd_ps(q, _mm256_loadu_ps(keys + j * KEY_STRIDE + d), sums[j]);
    }
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

// Take one block of keys and values, the first at position `first`, into the row's softmax.
void attend_block(Row& row, const float* keys, const float* values, int first) {
    const int visible = std::min(BLOCK_SIZE, row.position + 1 - first);
    if (visible <= 0) return;
    const float scale = 1.0f / std::sqrt(float{HEAD_DIM});
    alignas(32) float weights[BLOCK_SIZE];
    for (int j = 0; j < BLOCK_SIZE; j += 4) _mm_store_ps(weights + j, dot_four(row.query, keys + j * KEY_STRIDE));

    float peak = row.peak;
    for (int j = 0; j < BLOCK_SIZE; ++j) {
        // What lies behind the last visible key was never written: it may be anything, NaN included.
        weights[j] = j < visible ? weights[j] * scale : NEVER;
        peak = std::max(peak, weights[j]);
    }
    const float kept = std::exp(row.peak - peak);
    float total = 0.0f;
#pragma omp simd reduction(+ : total)
    for (int j = 0; j < BLOCK_SIZE; ++j) {
        weights[j] = expf(weights[j] - peak);
        total += weights[j];
    }
    row.peak = peak;
    row.total = row.total * kept + total;

    constexpr int WIDTH = std::gcd(HEAD_DIM / LANES, 8);  // accumulators that fit the registers
    for (int d = 0; d < HEAD_DIM; d += WIDTH * LANES) {
        __m256 sums[WIDTH];
        for (int i = 0; i < WIDTH; ++i)
            sums[i] = _mm256_mul_ps(_mm256_loadu_ps(row.out + d + i * LANES), _mm256_set1_ps(kept));
        for (int j = 0; j < visible; ++j) {
            const float* value = values + j * KEY_STRIDE + d;
            const __m256 weight = _mm256_set1_ps(weights[j]);
            for (int i = 0; i < WIDTH; ++i)
                sums[i] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(value + i * LANES), sums[i]);
        }
        for (int i = 0; i < WIDTH; ++i) _mm256_storeu_ps(row.out + d + i * LANES, sums[i]);
    }
}

void attend_tile(const Tile& tile, int kv_head, const float* query, const float* keys, const float* values, float* out) {
    Row rows[TILE * GROUP];
    for (int r = 0; r < tile.tokens * GROUP; ++r) {
        const int64_t head = int64_t{tile.first_token + r / GROUP} * NUM_HEADS + kv_head * GROUP + r % GROUP;
        rows[r] = {query + head * HEAD_DIM, out + head * HEAD_DIM, tile.position + r / GROUP};
        std::fill_n(rows[r].out, HEAD_DIM, 0.0f);
    }
    for (int first = 0; first < tile.position + tile.tokens; first += BLOCK_SIZE) {
        const int64_t block = int64_t{tile.blocks[first / BLOCK_SIZE]} * BLOCK_SIZE * KEY_STRIDE + kv_head * HEAD_DIM;
        for (int r = 0; r < tile.tokens * GROUP; ++r) attend_block(rows[r], keys + block, values + block, first);
    }
    for (int r = 0; r < tile.tokens * GROUP; ++r)
        for (int d = 0; d < HEAD_DIM; ++d) rows[r].out[d] /= rows[r].total;
}

}  // namespace

// query, out: [tokens, NUM_HEADS, HEAD_DIM]; caches: [num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM];
// block_tables: [seqs, max_blocks]; query_start: [seqs + 1]; context_lens: [seqs].
// Returns -1, or the first sequence whose blocks do not cover its context; then nothing was computed.
extern "C" int paged_attention(const float* query, const float* key_cache, const float* value_cache, float* out,
                               const int32_t* block_tables, const int32_t* query_start, const int32_t* context_lens,
                               int seqs, int max_blocks, int num_blocks, int threads) {
    std::vector<Tile> tiles;
    for (int seq = 0; seq < seqs; ++seq) {
        const int32_t* blocks = block_tables + int64_t{seq} * max_blocks;
        const int start = query_start[seq], end = query_start[seq + 1];
        const int needed = (context_lens[seq] + BLOCK_SIZE - 1) / BLOCK_SIZE;
        const auto exists = [&](int32_t block) { return block >= 0 && block < num_blocks; };
        if (end < start || end - start > context_lens[seq] || needed > max_blocks ||
            !std::all_of(blocks, blocks + needed, exists))
            return seq;
        for (int token = start; token < end; token += TILE)
            tiles.push_back({blocks, token, context_lens[seq] - (end - token), std::min(TILE, end - token)});
    }
    // From the back: the last tiles of a prefill see the most keys, and the longest work must not start last.
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t item = int64_t(tiles.size()) * NUM_KV_HEADS - 1; item >= 0; --item)
        attend_tile(tiles[item / NUM_KV_HEADS], item % NUM_KV_HEADS, query, key_cache, value_cache, out);
    return -1;
}
