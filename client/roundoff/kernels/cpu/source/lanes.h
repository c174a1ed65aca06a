/* Vectors of binary32 for whatever instruction set this file is compiled for.

   GCC's vector extension gives arithmetic and comparisons (a comparison is −1 or 0 per lane); what it lacks, the
   square root and the conversions of binary16, comes from the instruction set. */
#ifndef ROUNDOFF_LANES_H
#define ROUNDOFF_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef int16_t vh __attribute__((vector_size(4 * LANES))); /* two to a lane of the others: for counts and exponents */

/* Dependent chains that a loop keeps in flight: each step of the arithmetic is written for all of them before the
   next, since a core sees only some fifty instructions ahead. */
#define CHAINS 4
#define STEP (CHAINS * LANES)
#define EACH for (int k = 0; k < CHAINS; k++)

INLINE vu load(const void *from)
{
    vu x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE vf load_f32(const float *from)
{
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store(void *to, vu x) { memcpy(to, &x, sizeof x); }

INLINE vf all(float x) { return x - (vf){0}; }
INLINE vi all_int(int32_t x) { return x + (vi){0}; }

INLINE vf square_root(vf x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__)
    return (vf)_mm_sqrt_ps((__m128)x);
#elif defined(__aarch64__)
    return (vf)vsqrtq_f32((float32x4_t)x);
#else
    vf r;
    for (int k = 0; k < LANES; k++) r[k] = sqrtf(x[k]);
    return r;
#endif
}

/* The smaller of each lane, and the larger of integers. */
INLINE vf at_most(vf x, vf limit)
{
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)x, (__m512)limit);
#elif defined(__AVX2__)
    return (vf)_mm256_min_ps((__m256)x, (__m256)limit);
#elif defined(__SSE2__)
    return (vf)_mm_min_ps((__m128)x, (__m128)limit);
#else
    vu below = (vu)(x < limit);
    return (vf)(((vu)x & below) | ((vu)limit & ~below));
#endif
}

/* `other` in the lanes where x is not a number. */
INLINE vf unless_nan(vf x, vf other)
{
#if defined(__AVX512F__)
    return (vf)_mm512_mask_mov_ps((__m512)x, _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q), (__m512)other);
#elif defined(__AVX2__)
    return (vf)_mm256_blendv_ps((__m256)x, (__m256)other, _mm256_cmp_ps((__m256)x, (__m256)x, _CMP_UNORD_Q));
#else
    vu nan = (vu)(x != x);
    return (vf)(((vu)x & ~nan) | ((vu)other & nan));
#endif
}

INLINE vi at_least(vi x, vi limit)
{
#if defined(__AVX512F__)
    return (vi)_mm512_max_epi32((__m512i)x, (__m512i)limit);
#elif defined(__AVX2__)
    return (vi)_mm256_max_epi32((__m256i)x, (__m256i)limit);
#else
    vi above = x > limit;
    return (x & above) | (limit & ~above);
#endif
}

/* Each lane's lower half moved up, its upper half moved down. Byte shuffles, where there are any: AMD's first AVX2
   cores have one unit for shifts, which the stores need too. What that gains is a few per cent at most. */
INLINE vu moved_up(vu x)
{
#if LANES == 8
    const __m256i from = _mm256_setr_epi8(
        -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13, -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13);
    return (vu)_mm256_shuffle_epi8((__m256i)x, from);
#else
    return x << 16;
#endif
}

INLINE vu moved_down(vu x)
{
#if LANES == 8
    const __m256i from = _mm256_setr_epi8(
        2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15, -1, -1, 2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15, -1, -1);
    return (vu)_mm256_shuffle_epi8((__m256i)x, from);
#else
    return x >> 16;
#endif
}

/* The smaller and the larger of each half lane. */
INLINE vh smaller(vh x, vh y)
{
#if LANES == 16
    return (vh)_mm512_min_epi16((__m512i)x, (__m512i)y);
#elif LANES == 8
    return (vh)_mm256_min_epi16((__m256i)x, (__m256i)y);
#elif defined(__SSE2__)
    return (vh)_mm_min_epi16((__m128i)x, (__m128i)y);
#else
    vh below = x < y;
    return (x & below) | (y & ~below);
#endif
}

INLINE vh larger(vh x, vh y)
{
#if LANES == 16
    return (vh)_mm512_max_epi16((__m512i)x, (__m512i)y);
#elif LANES == 8
    return (vh)_mm256_max_epi16((__m256i)x, (__m256i)y);
#elif defined(__SSE2__)
    return (vh)_mm_max_epi16((__m128i)x, (__m128i)y);
#else
    vh above = x > y;
    return (x & above) | (y & ~above);
#endif
}

INLINE vh all_half(int16_t x) { return x + (vh){0}; }

/* Lower halves of one, upper halves of the other. */
INLINE vu halves(vu lower, vu upper)
{
#if LANES == 8
    return (vu)_mm256_blend_epi16((__m256i)lower, (__m256i)upper, 0xaa);
#else
    return (lower & 0xffffu) | (upper & 0xffff0000u);
#endif
}

INLINE vf magnitude(vf x) { return (vf)((vu)x & 0x7fffffffu); }

/* Across lanes, by way of memory: taking lanes out of a register one by one costs several instructions each. */
INLINE float sum_of(vf x)
{
    float lanes[LANES], total = 0;
    memcpy(lanes, &x, sizeof x);
    for (int k = 0; k < LANES; k++) total += lanes[k];
    return total;
}

INLINE int smallest_half(vh x)
{
    int16_t lanes[2 * LANES], smallest = INT16_MAX;
    memcpy(lanes, &x, sizeof x);
    for (int k = 0; k < 2 * LANES; k++) smallest = lanes[k] < smallest ? lanes[k] : smallest;
    return smallest;
}

INLINE int largest_half(vh x) { return -1 - smallest_half(-1 - x); }

INLINE int64_t count_of(vi hits)
{
    int32_t lanes[LANES], total = 0;
    memcpy(lanes, &hits, sizeof hits);
    for (int k = 0; k < LANES; k++) total += lanes[k];
    return total;
}

/* Of comparisons that were added up: true is −1. */
INLINE int64_t times_true(vh hits) { return -count_of(((vi)((vu)hits << 16) >> 16) + ((vi)hits >> 16)); }

INLINE float smallest_of(vf x)
{
    float smallest = x[0];
    for (int k = 1; k < LANES; k++) smallest = x[k] < smallest ? x[k] : smallest;
    return smallest;
}

/* Even and odd elements of 2·LANES binary32 values, and back. */
#if LANES == 16
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define LEFT 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define RIGHT 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#define LEFT 0, 8, 1, 9, 2, 10, 3, 11
#define RIGHT 4, 12, 5, 13, 6, 14, 7, 15
#else
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#define LEFT 0, 4, 1, 5
#define RIGHT 2, 6, 3, 7
#endif

#endif
