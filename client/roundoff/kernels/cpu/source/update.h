/* The update of one block, in two loops over buffers that stay in the first cache.

   The order of operations is that of kernels/reference.py, every operation rounded to binary32 and none fused, so
   both give the same bits. A value that is not finite is looked for once per block, in a running sum of the
   rounding errors, and mended afterwards. */
#ifndef ROUNDOFF_UPDATE_H
#define ROUNDOFF_UPDATE_H

#include "before.h"

INLINE void read_moment(enum format format, enum second second, const char *words, long i, vf *x)
{
    if (second == WIDE)
        read_wide(format, words, i, x);
    else
        read_words(format, words, i, x);
}

/* Both moments; leaves m'·(−lr/(1−β1ᵗ)) and √v' behind. Returns a sum that is not finite if a rest of v is not.
   With `measured` the old words of v go to `old`. */
INLINE float step_moments(
    enum format format,
    enum second second,
    int measured,
    const struct block *b,
    const struct scalars *s,
    struct before *old,
    float *numerator,
    float *root)
{
    const long size = second == WIDE ? 4 : width(format);
    vf wrong = {0};
    for (long i = 0; i < b->numel; i += STEP) {
        vf g[CHAINS], v[CHAINS], low[CHAINS], m[CHAINS], square[CHAINS], rest[CHAINS];
        read_words(format, b->grad, i, g);
        if (second == TWO_EXACT) {
            read_exact(b->v, b->v_lo, i, v);
        } else {
            read_moment(format, second, b->v, i, v);
        }
        if (measured) {
            remember(size, old->v, b->v, i);
            if (second == TWO_WORDS || second == TWO_EXACT) remember(2, old->v_lo, b->v_lo, i);
        }
        if (second == TWO_WORDS) {
            read_words(format, b->v_lo, i, low);
            EACH v[k] += low[k];
        }
        EACH g[k] *= s->scale;
        EACH square[k] = g[k] * g[k];
        EACH v[k] *= s->beta2;
        EACH square[k] *= s->rest2;
        EACH v[k] += square[k];
        EACH store(root + i + k * LANES, (vu)square_root(v[k]));

        read_moment(format, second, b->m, i, m);
        EACH g[k] *= s->rest1;
        EACH m[k] *= s->beta1;
        EACH m[k] += g[k];
        EACH store(numerator + i + k * LANES, (vu)(m[k] * s->step_size));
        if (second == WIDE) {
            write_wide(format, b->m, i, m);
            write_wide(format, b->v, i, v);
        } else {
            write_words(format, b->m, i, m);
        }
        if (second == TWO_EXACT) {
            write_exact(b->v, b->v_lo, i, v);
        } else if (second == TWO_WORDS) {
            write_and_keep(format, b->v, i, v, rest, 0);
            EACH rest[k] = v[k] - rest[k];
            EACH wrong += rest[k];
            write_words(format, b->v_lo, i, rest);
        } else if (second == ONE_WORD) {
            write_words(format, b->v, i, v);
        }
    }
    return sum_of(wrong);
}

/* m-part of u for STEP elements: the division runs a step ahead of the loop that uses it. */
INLINE void divide(const struct scalars *s, float *numerator, const float *root, long i)
{
    vf under[CHAINS];
    EACH under[k] = load_f32(root + i + k * LANES) * s->root_scale;
    EACH under[k] += s->eps;
    EACH store(numerator + i + k * LANES, (vu)(load_f32(numerator + i + k * LANES) / under[k]));
}

/* 16 random bits in each lane's lower half; `x` is index·WEYL + the key's lower half. */
INLINE vu random_words(vu x, uint32_t noise_high)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) ^ noise_high;
    x *= 0x846ca68bu;
    return x >> 16;
}

#define WEYL 0x9e3779b9u
#define HIGH_WEYL 0x85ebca6bu

/* index·WEYL + (index / 2^32)·HIGH_WEYL + noise, for the elements of vector k of a step that begins at `first`. */
INLINE vu weyl(uint64_t first, uint32_t noise, int k)
{
    vu x, ahead;
    for (int lane = 0; lane < LANES; lane++) ahead[lane] = (uint32_t)(2 * lane) * WEYL; /* constants */
    x = ahead + ((uint32_t)(first + (uint64_t)((k & ~1) * LANES + (k & 1))) * WEYL + noise);
    if ((uint32_t)first <= UINT32_MAX - STEP) return x + (uint32_t)(first >> 32) * HIGH_WEYL;
    for (int lane = 0; lane < LANES; lane++) /* the upper half changes within the step */
        x[lane] += (uint32_t)((first + (uint64_t)((k & ~1) * LANES + 2 * lane + (k & 1))) >> 32) * HIGH_WEYL;
    return x;
}

INLINE void add_stochastically(const struct block *b, const struct scalars *s, long i, const vf *sum)
{
    uint64_t first = s->first + b->index + (uint64_t)i;
    vu rounded[CHAINS];
    EACH rounded[k] = (vu)sum[k] + random_words(weyl(first, s->noise, k), s->noise_high);
    write_rounded(b->param, i, rounded);
}

INLINE float step_weight(
    enum format format,
    enum weight weight,
    enum second second,
    int has_decay,
    int measured,
    const struct block *b,
    const struct scalars *s,
    struct before *old,
    float *numerator,
    const float *root)
{
    vf wrong = {0};
    divide(s, numerator, root, 0);
    for (long i = 0; i < b->numel; i += STEP) {
        vf hi[CHAINS], lo[CHAINS], whole[CHAINS], u[CHAINS], t[CHAINS], rest[CHAINS];
        if (i + STEP < b->numel) divide(s, numerator, root, i + STEP);
        if (measured) {
            remember(width(format), old->param, b->param, i);
            if (weight == PAIR || weight == KAHAN || weight == EXACT) remember(2, old->lo, b->lo, i);
            if (weight == MASTER) remember(4, old->master, b->master, i);
        }
        if (weight == EXACT)
            read_exact(b->param, b->lo, i, hi);
        else if (weight == MASTER)
            read_wide(format, b->master, i, hi);
        else
            read_words(format, b->param, i, hi);
        EACH u[k] = load_f32(numerator + i + k * LANES);
        if (weight == PAIR || weight == KAHAN) {
            read_words(format, b->lo, i, lo);
            EACH whole[k] = hi[k] + lo[k];
        } else {
            EACH whole[k] = hi[k];
        }
        if (has_decay) {
            EACH whole[k] *= s->decay;
            EACH u[k] += whole[k];
        }
        if (measured) EACH store(numerator + i + k * LANES, (vu)u[k]);
        if (weight == PAIR || weight == KAHAN) EACH u[k] += lo[k];
        EACH t[k] = hi[k] + u[k];
        if (weight == PAIR || weight == KAHAN) {
            write_and_keep(format, b->param, i, t, rest, 0);
            if (weight == PAIR) {
                EACH rest[k] = t[k] - rest[k];
            } else {
                EACH rest[k] -= hi[k];
                EACH rest[k] = u[k] - rest[k];
            }
            EACH wrong += rest[k];
            write_words(format, b->lo, i, rest);
        } else if (weight == EXACT) {
            write_exact(b->param, b->lo, i, t);
        } else if (weight == STOCHASTIC) {
            add_stochastically(b, s, i, t);
        } else {
            if (weight == MASTER) write_wide(format, b->master, i, t);
            write_and_keep(format, b->param, i, t, rest, second == WIDE);
        }
    }
    return sum_of(wrong);
}

/* Second words that are not finite, or beside a first one that is not, are 0. */
INLINE void mend(enum format format, const char *words, char *rest, long numel)
{
    uint16_t exponent = format == BFLOAT16 ? 0x7f80 : 0x7c00;
    const uint16_t *first = (const uint16_t *)words;
    uint16_t *second = (uint16_t *)rest;
    for (long i = 0; i < numel; i++)
        if ((first[i] & exponent) == exponent || (second[i] & exponent) == exponent) second[i] = 0;
}

/* numerator, root: BLOCK floats each. With `measured`, numerator holds u afterwards and `old` the words before. */
INLINE void update_block(
    enum format format,
    enum weight weight,
    enum second second,
    int has_decay,
    int measured,
    const struct block *b,
    const struct scalars *s,
    struct before *old,
    float *numerator,
    float *root)
{
    float wrong = step_moments(format, second, measured, b, s, old, numerator, root);
    if (second == TWO_WORDS && !isfinite(wrong)) mend(format, b->v, b->v_lo, b->numel);
    wrong = step_weight(format, weight, second, has_decay, measured, b, s, old, numerator, root);
    if ((weight == PAIR || weight == KAHAN) && !isfinite(wrong)) mend(format, b->param, b->lo, b->numel);
}

#endif
