// Reads memory as fast as the core can ask for it: the yardstick for kernels that stream weights.
#include <immintrin.h>
#include <cstddef>
#include <cstdint>

namespace {

inline __m256i load(const char* at) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(at)); }

// Eight independent chains, 256 bytes a round; `ahead` bytes are asked for early (0: leave it to the hardware).
template <int ahead>
uint64_t fold(const char* data, size_t bytes) {
  __m256i sums[8];
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  for (size_t at = 0; at < bytes; at += 256) {
    if constexpr (ahead > 0)
      for (int line = 0; line < 256; line += 64) _mm_prefetch(data + at + ahead + line, _MM_HINT_NTA);
    for (int lane = 0; lane < 8; ++lane) sums[lane] = _mm256_xor_si256(sums[lane], load(data + at + 32 * lane));
  }
  for (int lane = 1; lane < 8; ++lane) sums[0] = _mm256_xor_si256(sums[0], sums[lane]);
  alignas(32) uint64_t parts[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts), sums[0]);
  return parts[0] ^ parts[1] ^ parts[2] ^ parts[3];
}

}  // namespace

// `data` is aligned to 32 bytes and `bytes` is a multiple of 256. Returns the XOR of all 64-bit words, so that no load
// can be left out.
extern "C" uint64_t read_plain(const char* data, size_t bytes) { return fold<0>(data, bytes); }
extern "C" uint64_t read_prefetch(const char* data, size_t bytes) { return fold<2048>(data, bytes); }
