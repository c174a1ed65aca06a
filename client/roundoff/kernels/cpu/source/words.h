/* The storage formats: words in memory to binary32 and back, rounded once to nearest, ties to even.

   bfloat16 is taken two words to a 32-bit lane, so that neither widening nor packing crosses lanes: vector 2j of a
   step holds the even elements, 2j + 1 the odd ones. binary32 beside it is read in the same order. */
#ifndef ROUNDOFF_WORDS_H
#define ROUNDOFF_WORDS_H

#include "lanes.h"

enum format { BFLOAT16, FLOAT16, FLOAT32 };

#define HIGH 0xffff0000u

#if defined(__F16C__) || defined(__AVX512F__) || defined(__aarch64__)
#define HAS_FLOAT16 1
#else
#define HAS_FLOAT16 0
#endif

INLINE long width(enum format format) { return format == FLOAT32 ? 4 : 2; }

/* The rounded word is the upper half of each lane, what is below is not zero. No NaN passes through here whose
   lower half is set: they come from arithmetic on 16-bit words, and keep theirs at zero. */
INLINE vu round_bf16(vf x)
{
    vu bits = (vu)x;
    return bits + 0x8000u + (vu)((bits & 0x10000u) == 0);
}

/* The same where binary32 state may have brought in any NaN. */
INLINE vu round_bf16_any(vf x)
{
    vu number = (vu)(x == x);
    return (round_bf16(x) & number) | (0x7fc00000u & ~number);
}

/* Two comparisons, or two numbers that fit their upper halves, in one vector: the first in the lower halves, where its
   elements' words lie in memory if the format is bfloat16. */
INLINE vh joined(vi first, vi second) { return (vh)halves((vu)first, (vu)second); }
INLINE vh joined_tops(vu first, vu second) { return (vh)halves(moved_down(first), second); }

INLINE vf top(vu rounded) { return (vf)(rounded & HIGH); }

#if HAS_FLOAT16
INLINE vf widen_f16(const uint16_t *from)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__F16C__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#endif
}

INLINE void narrow_f16(uint16_t *to, vf x)
{
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
#endif
}

/* x rounded to binary16, as binary32. */
INLINE vf through_f16(vf x)
{
    uint16_t words[LANES];
    narrow_f16(words, x);
    return widen_f16(words);
}
#else
INLINE vf widen_f16(const uint16_t *from) { (void)from; return (vf){0}; }
INLINE void narrow_f16(uint16_t *to, vf x) { (void)to; (void)x; }
INLINE vf through_f16(vf x) { return x; }
#endif

/* Words from element i on, `vectors` of them (an even number). */
INLINE void read_some(enum format format, const char *words, long i, vf *x, int vectors)
{
    if (format == BFLOAT16) {
        for (int k = 0; k < vectors; k += 2) {
            vu both = load(words + 2 * (i + k * LANES));
            x[k] = (vf)moved_up(both);
            x[k + 1] = (vf)(both & HIGH);
        }
    } else if (format == FLOAT16) {
        for (int k = 0; k < vectors; k++) x[k] = widen_f16((const uint16_t *)words + i + k * LANES);
    } else {
        for (int k = 0; k < vectors; k++) x[k] = load_f32((const float *)words + i + k * LANES);
    }
}

INLINE void read_words(enum format format, const char *words, long i, vf *x) { read_some(format, words, i, x, CHAINS); }

/* bfloat16 words that `round_bf16` made. */
INLINE void write_rounded(char *words, long i, const vu *rounded)
{
    for (int k = 0; k < CHAINS; k += 2)
        store(words + 2 * (i + k * LANES), halves(moved_down(rounded[k]), rounded[k + 1]));
}

/* Round x to the format and write it. */
INLINE void write_words(enum format format, char *words, long i, const vf *x)
{
    if (format == BFLOAT16) {
        vu rounded[CHAINS];
        EACH rounded[k] = round_bf16(x[k]);
        write_rounded(words, i, rounded);
    } else if (format == FLOAT16) {
        EACH narrow_f16((uint16_t *)words + i + k * LANES, x[k]);
    } else {
        EACH store((float *)words + i + k * LANES, (vu)x[k]);
    }
}

/* Round x to the format, write it, and give what was written as binary32. */
INLINE void write_and_keep(enum format format, char *words, long i, const vf *x, vf *kept, int any_nan)
{
    if (format == BFLOAT16) {
        vu rounded[CHAINS];
        EACH rounded[k] = (any_nan ? round_bf16_any(x[k]) : round_bf16(x[k])) & HIGH;
        write_rounded(words, i, rounded);
        EACH kept[k] = (vf)rounded[k];
    } else if (format == FLOAT16) {
        EACH narrow_f16((uint16_t *)words + i + k * LANES, x[k]);
        EACH kept[k] = widen_f16((const uint16_t *)words + i + k * LANES);
    } else {
        EACH store((float *)words + i + k * LANES, (vu)x[k]);
        EACH kept[k] = x[k];
    }
}

/* binary32 state beside words of a format, in the order in which the words are read. */
INLINE void read_some_wide(enum format beside, const char *state, long i, vf *x, int vectors)
{
    const float *from = (const float *)state + i;
    for (int k = 0; k < vectors; k++) x[k] = load_f32(from + k * LANES);
    if (beside != BFLOAT16) return;
    for (int k = 0; k < vectors; k += 2) {
        vf first = x[k], second = x[k + 1];
        x[k] = __builtin_shufflevector(first, second, EVEN);
        x[k + 1] = __builtin_shufflevector(first, second, ODD);
    }
}

INLINE void read_wide(enum format beside, const char *state, long i, vf *x) { read_some_wide(beside, state, i, x, CHAINS); }

INLINE void write_wide(enum format beside, char *state, long i, const vf *x)
{
    float *to = (float *)state + i;
    if (beside != BFLOAT16) {
        EACH store(to + k * LANES, (vu)x[k]);
        return;
    }
    for (int k = 0; k < CHAINS; k += 2) {
        store(to + k * LANES, (vu)__builtin_shufflevector(x[k], x[k + 1], LEFT));
        store(to + (k + 1) * LANES, (vu)__builtin_shufflevector(x[k], x[k + 1], RIGHT));
    }
}

/* An exact binary32 value in a bfloat16 word and a 16-bit integer remainder: word·2^16 + remainder is its bit
   pattern, modulo 2^32. A remainder that does not belong to its word, a zero written over a weight, say, counts for
   nothing where it would make a NaN of it. */
INLINE void read_some_exact(const char *words, const char *rest, long i, vf *x, int vectors)
{
    for (int k = 0; k < vectors; k += 2) {
        vu hi = load(words + 2 * (i + k * LANES)), lo = load(rest + 2 * (i + k * LANES));
        vu even = moved_up(hi), odd = hi & HIGH;
        x[k] = unless_nan((vf)(even + (vu)((vi)(lo << 16) >> 16)), (vf)even);
        x[k + 1] = unless_nan((vf)(odd + (vu)((vi)lo >> 16)), (vf)odd);
    }
}

INLINE void read_exact(const char *words, const char *rest, long i, vf *x) { read_some_exact(words, rest, i, x, CHAINS); }

INLINE void write_exact(char *words, char *rest, long i, const vf *x)
{
    vu bits[CHAINS], rounded[CHAINS];
    EACH bits[k] = (vu)x[k];
    EACH rounded[k] = bits[k] + 0x8000u; /* ties away from zero */
    write_rounded(words, i, rounded);
    for (int k = 0; k < CHAINS; k += 2)
        store(rest + 2 * (i + k * LANES), halves(bits[k], moved_up(bits[k + 1])));
}

#endif
