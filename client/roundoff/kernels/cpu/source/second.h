/* What happened to the second moment's words: against g² as it was. */
#ifndef ROUNDOFF_SECOND_H
#define ROUNDOFF_SECOND_H

#include "before.h"

#define SMALL_SQUARE 0x1p-100f
#define NOT_FINITE 0x7f80 /* words of bfloat16 from here on, without the sign */

/* Of one block. Comparisons are added up as they are, −1 for true. */
struct second_found {
    vh even, stuck, high;           /* g² = v; v' = v otherwise; of those g² < v */
    vh smallest, largest, largest_v; /* of words of bfloat16, without the sign; of v with it */
    vh zero, low, under;            /* the same for other formats: g² = 0; below `small`; lost to underflow */
    vf total;
};

/* What makes a block go the exact way: squares that binary32 does not hold well. */
INLINE float small_square(enum format format, enum second second, const struct scalars *s)
{
    return s->v_limit > 0x1p-101 && !(format == FLOAT16 && second != WIDE) ? (float)s->v_limit * 1.01f : SMALL_SQUARE;
}

/* Where v's words are as they were, for two vectors of elements from i on. `v`: the first words before, or all of v. */
INLINE vh unchanged_second(
    enum format format, enum second second, const struct block *b, const struct before *old, long i, const vf *v, const vf *rest)
{
    vf now[2];
    vh same;
    if (format == BFLOAT16 && second != WIDE) {
        same = (vh)load(old->v + 2 * i) == (vh)load(b->v + 2 * i);
        if (second != ONE_WORD) same &= (vh)load(old->v_lo + 2 * i) == (vh)load(b->v_lo + 2 * i);
        return same;
    }
    if (second == WIDE)
        read_some_wide(format, b->v, i, now, 2);
    else
        read_some(format, b->v, i, now, 2);
    same = joined((vi)now[0] == (vi)v[0], (vi)now[1] == (vi)v[1]);
    if (second == TWO_WORDS) {
        read_some(format, b->v_lo, i, now, 2);
        same &= joined((vi)now[0] == (vi)rest[0], (vi)now[1] == (vi)rest[1]);
    }
    return same;
}

INLINE void see_second(
    enum format format,
    enum second second,
    int scaled,
    const struct block *b,
    const struct before *old,
    const struct scalars *s,
    struct second_found *f)
{
    const float small = small_square(format, second, s), limit = (float)s->v_limit;
    for (long i = 0; i < b->numel; i += 2 * LANES) {
        vf g[2], v[2], rest[2], away[2];
        vh same, at_rest, size;
        read_some(format, b->grad, i, g, 2);
        if (second == TWO_EXACT)
            read_some_exact(old->v, old->v_lo, i, v, 2);
        else if (second == WIDE)
            read_some_wide(format, old->v, i, v, 2);
        else
            read_some(format, old->v, i, v, 2);
        rest[0] = rest[1] = (vf){0};
        if (second == TWO_WORDS) read_some(format, old->v_lo, i, rest, 2);
        for (int k = 0; k < 2; k++) {
            if (scaled) g[k] *= s->scale;
            g[k] *= g[k];
            away[k] = g[k] - v[k]; /* exact where it matters, near v; then compared with the second word */
        }
        at_rest = joined(away[0] == rest[0], away[1] == rest[1]);
        same = unchanged_second(format, second, b, old, i, v, rest) & ~at_rest;
        f->even += at_rest;
        f->stuck += same;
        f->high += same & joined(away[0] < rest[0], away[1] < rest[1]);
        if (format == BFLOAT16 && second != WIDE)
            f->largest_v = larger(f->largest_v, (vh)load(old->v + 2 * i));
        else
            f->total += away[0] + away[1];
        if (format == BFLOAT16) {
            size = (vh)load(b->grad + 2 * i) & INT16_MAX;
            f->smallest = smaller(f->smallest, size);
            f->largest = larger(f->largest, size);
            continue;
        }
        f->zero += joined(g[0] == 0, g[1] == 0);
        f->low += joined(g[0] < small, g[1] < small);
        if (format == FLOAT16 && second != WIDE) f->under += joined(g[0] <= limit, g[1] <= limit);
    }
}

INLINE float from_bf16(int word)
{
    uint32_t bits = (uint32_t)word << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Gradients of bfloat16: how many are 0. Returns −1 where the block must be measured exactly. */
INLINE int64_t zero_words(enum second second, const struct block *b, const struct scalars *s, const struct second_found *f)
{
    float largest = from_bf16(largest_half(f->largest)) * s->scale;
    int smallest = smallest_half(f->smallest);
    vh zero = {0}, least = all_half(0x7fff);
    if (largest_half(f->largest) >= NOT_FINITE || largest_half(f->largest_v) >= NOT_FINITE) return -1;
    if (!isfinite(largest * largest)) return -1;
    if (smallest == 0) {
        for (long i = 0; i < b->numel; i += 2 * LANES) {
            vh size = (vh)load(b->grad + 2 * i) & 0x7fff, none = size == 0;
            zero += none;
            least = smaller(least, size | (none & 0x7fff));
        }
        smallest = smallest_half(least);
    }
    float least_g = from_bf16(smallest) * s->scale;
    return least_g * least_g < small_square(BFLOAT16, second, s) ? -1 : times_true(zero);
}

/* Returns 0 where the block must be measured exactly. */
INLINE int measure_second(
    enum format format, enum second second, const struct block *b, const struct before *old, const struct scalars *s, double *row)
{
    struct second_found f = {.smallest = all_half(INT16_MAX), .largest_v = all_half(INT16_MIN)};
    if (s->scale == 1)
        see_second(format, second, 0, b, old, s, &f);
    else
        see_second(format, second, 1, b, old, s, &f);
    int64_t zeros = times_true(f.zero);
    if (!isfinite(sum_of(f.total))) return 0;
    if (format == BFLOAT16) {
        zeros = zero_words(second, b, s, &f);
        if (zeros < 0) return 0;
    } else if (times_true(f.low) != zeros) {
        return 0;
    }
    row[V_ATTEMPTED] += (double)(b->numel - times_true(f.even));
    row[V_STUCK] += (double)times_true(f.stuck);
    row[V_STUCK_HIGH] += (double)times_true(f.high);
    row[ZERO_GRAD] += (double)zeros;
    if (format == FLOAT16 && second != WIDE) row[V_UNDERFLOWED] += (double)(times_true(f.under) - zeros);
    return 1;
}

#endif
