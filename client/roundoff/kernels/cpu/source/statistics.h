/* The statistics of one block, numerics §4, in vectors: counts exactly, sums in binary32 over one block.

   What binary32 cannot hold, values that are not finite and sums out of its comfortable range, sends the block to
   `measure_exactly` in exact.h, which is the definition written out, an element at a time. The division of the work
   into loops is for the compiler: each keeps few enough values to hold them in registers. */
#ifndef ROUNDOFF_STATISTICS_H
#define ROUNDOFF_STATISTICS_H

#include "before.h"
#include "exact.h"
#include "update.h"

#define COMFORTABLE 1e-25f /* a block's sum of squares from here on has lost nothing that shows to underflow */
#define SMALL_SQUARE 0x1p-100f

/* Vectors that these loops take at a time: more would not stay in registers beside the sums. */
#define FEW 2
#define FOR_FEW for (int k = 0; k < FEW; k++)

INLINE void read_some_moment(enum format format, enum second second, const char *words, long i, vf *x)
{
    if (second == WIDE)
        read_some_wide(format, words, i, x, FEW);
    else
        read_some(format, words, i, x, FEW);
}

/* Everything stored of the weight, and its change. */
struct words {
    vf hi[FEW], seen[FEW], whole[FEW], applied[FEW], lo[FEW];
};

INLINE void read_both(enum format format, enum weight weight, const struct block *b, const struct before *old, long i, struct words *w)
{
    vf after[FEW];
    read_some(format, old->param, i, w->hi, FEW);
    read_some(format, b->param, i, after, FEW);
    FOR_FEW w->seen[k] = after[k] - w->hi[k];
    if (weight == PAIR || weight == KAHAN) {
        read_some(format, old->lo, i, w->lo, FEW);
        read_some(format, b->lo, i, after, FEW);
        FOR_FEW w->whole[k] = w->hi[k] + w->lo[k];
        FOR_FEW w->applied[k] = w->seen[k] + (after[k] - w->lo[k]);
    } else if (weight == MASTER || weight == EXACT) {
        if (weight == MASTER) {
            read_some_wide(format, old->master, i, w->whole, FEW);
            read_some_wide(format, b->master, i, after, FEW);
        } else {
            read_some_exact(old->param, old->lo, i, w->whole, FEW);
            read_some_exact(b->param, b->lo, i, after, FEW);
        }
        FOR_FEW w->applied[k] = after[k] - w->whole[k];
    } else {
        FOR_FEW w->whole[k] = w->hi[k];
        FOR_FEW w->applied[k] = w->seen[k];
    }
}

/* What one look at a block has found; a count is negative, since a true comparison is −1. */
struct found {
    vf uu, ua, aa, us, ss, ww, smallest_u, smallest_w;
    vi zero_u, lost, invisible, unchanged, under;
};

/* Products and counts of u, a, s and w. Unless `careful`, every u is taken to be a normal number, not 0. */
INLINE void look(
    enum format format, enum weight weight, int careful, const struct block *b, const struct before *old, const float *u, struct found *f)
{
    int plain = weight == PLAIN || weight == STOCHASTIC;
    f->smallest_u = f->smallest_w = all(1);
    for (long i = 0; i < b->numel; i += FEW * LANES) {
        struct words w;
        read_both(format, weight, b, old, i, &w);
        for (int k = 0; k < FEW; k++) {
            vf intended = load_f32(u + i + k * LANES), seen = w.seen[k], applied = w.applied[k];
            vi gone = applied == 0, same = seen == 0;
            if (careful) {
                vi zero = intended == 0;
                vf size = magnitude(intended);
                f->zero_u += zero;
                f->unchanged += same;
                gone &= ~zero, same &= ~zero;
                f->smallest_u = at_most((vf)((vu)size | ((vu)zero & 0x3f800000u)), f->smallest_u);
                if (format == FLOAT16) f->under += (size <= 0x1p-25f) & ~zero;
            } else {
                f->smallest_u = at_most(magnitude(intended), f->smallest_u);
            }
            f->lost += gone;
            f->smallest_w = at_most(magnitude(w.whole[k]), f->smallest_w);
            f->uu += intended * intended;
            f->ua += intended * applied;
            f->aa += applied * applied;
            f->ww += w.whole[k] * w.whole[k];
            if (plain) continue;
            f->invisible += same;
            f->us += intended * seen;
            f->ss += seen * seen;
        }
    }
    if (plain) f->invisible = f->lost, f->us = f->ua, f->ss = f->aa;
    if (!careful) f->unchanged = f->invisible;
}

/* Returns 0 where the block must be measured exactly. `smallest_w`: of abs(w), to find out whether any is 0. */
INLINE int measure_weight(
    enum format format, enum weight weight, const struct block *b, const struct before *old, const float *u, double *row, float *smallest_w)
{
    struct found f = {0};
    /* Below the normal range of binary16 updates can underflow, which only the careful look counts. */
    const float usual = format == FLOAT16 ? 0x1p-24f : 0x1p-126f;
    look(format, weight, 0, b, old, u, &f);
    if (smallest_of(f.smallest_u) < usual) {
        f = (struct found){0};
        look(format, weight, 1, b, old, u, &f);
        if (smallest_of(f.smallest_u) < 0x1p-126f) return 0; /* binary32 holds it as a subnormal number */
    }
    *smallest_w = smallest_of(f.smallest_w);
    float uu = sum_of(f.uu), aa = sum_of(f.aa), ss = sum_of(f.ss), ww = sum_of(f.ww);
    int64_t tries = b->numel + count_of(f.zero_u), losses = -count_of(f.lost), hidden = -count_of(f.invisible);
    if (!isfinite(uu + aa + ss + ww)) return 0;
    if (tries && uu < COMFORTABLE) return 0;
    if (tries > losses && aa < COMFORTABLE) return 0;
    if (tries > hidden && ss < COMFORTABLE) return 0;
    if (ww > 0 && ww < COMFORTABLE) return 0;
    row[NUMEL] += (double)b->numel;
    row[ATTEMPTED] += (double)tries;
    row[LOST] += (double)losses;
    row[INVISIBLE] += (double)hidden;
    row[UNCHANGED] -= (double)count_of(f.unchanged);
    row[UNDERFLOWED] -= (double)count_of(f.under);
    row[SUM_UU] += uu, row[SUM_UA] += sum_of(f.ua), row[SUM_AA] += aa;
    row[SUM_US] += sum_of(f.us), row[SUM_SS] += ss, row[SUM_WW] += ww;
    return 1;
}

/* The decay term alone, an element at a time: tried where it is not 0, lost where adding it would leave everything
   stored as it is. */
INLINE void try_decay(
    enum format format, enum weight weight, const struct block *b, const struct before *old, const struct scalars *s, double *row)
{
    vi idle = {0}, lost = {0};
    for (long i = 0; i < b->numel; i += FEW * LANES) {
        vf hi[FEW], lo[FEW], d[FEW], t[FEW], word[FEW];
        vi kept[FEW];
        if (weight == MASTER)
            read_some_wide(format, old->master, i, hi, FEW);
        else if (weight == EXACT)
            read_some_exact(old->param, old->lo, i, hi, FEW);
        else
            read_some(format, old->param, i, hi, FEW);
        if (weight == PAIR || weight == KAHAN) {
            read_some(format, old->lo, i, lo, FEW);
            FOR_FEW d[k] = hi[k] + lo[k];
            FOR_FEW d[k] *= s->decay;
            FOR_FEW t[k] = lo[k] + d[k];
            FOR_FEW t[k] += hi[k];
        } else {
            FOR_FEW d[k] = hi[k] * s->decay;
            FOR_FEW t[k] = hi[k] + d[k];
        }
        FOR_FEW word[k] = weight == MASTER || weight == EXACT ? t[k] : rounded_to(format, t[k]);
        FOR_FEW kept[k] = word[k] == hi[k];
        if (weight == PAIR || weight == KAHAN) {
            FOR_FEW t[k] -= word[k];
            FOR_FEW t[k] = rounded_to(format, t[k]);
            FOR_FEW kept[k] &= t[k] == lo[k];
        }
        FOR_FEW idle += d[k] == 0;
        FOR_FEW lost += kept[k] & (d[k] != 0);
    }
    row[DECAY_ATTEMPTED] += (double)(b->numel + count_of(idle));
    row[DECAY_LOST] -= (double)count_of(lost);
}

/* The same, by the ratio of the term to the weight where that alone decides: −lr·wd is one number for all. Toward zero
   half the gap of a p-bit number w is at least 2^−(p+1)·abs(w) and less than 2^−p·abs(w), so a plain word never
   moves below the one and always above the other. */
INLINE void measure_decay(
    enum format format,
    enum weight weight,
    const struct block *b,
    const struct before *old,
    const struct scalars *s,
    float smallest_w,
    double *row)
{
    const int wide = weight == MASTER || weight == EXACT, pair = weight == PAIR || weight == KAHAN;
    const float ratio = fabsf(s->decay), half = ldexpf(1, -(wide ? 24 : precision(format)));
    int never = !pair && !(wide || format == FLOAT32) && ratio < half / 4, always = !pair && format != FLOAT16 && ratio > half * 4;
    if (ratio == 0) return; /* a learning rate of 0: no term is tried */
    if (smallest_w < 0x1p-90f || ratio < 0x1p-30f || !(never || always)) {
        try_decay(format, weight, b, old, s, row);
        return;
    }
    row[DECAY_ATTEMPTED] += (double)b->numel;
    if (never) row[DECAY_LOST] += (double)b->numel;
}

/* Where neither word of a pair of elements has changed: even and odd lanes, from words as they lie in memory. */
INLINE void unchanged_words(const char *before, const char *after, const char *before_lo, const char *after_lo, long i, vi *same)
{
    for (int k = 0; k < FEW; k += 2) {
        long at = 2 * (i + k * LANES);
        vu moved = load(before + at) ^ load(after + at);
        if (before_lo) moved |= load(before_lo + at) ^ load(after_lo + at);
        same[k] = (moved << 16) == 0;
        same[k + 1] = (moved & HIGH) == 0;
    }
}

/* The second moment's words against g². Returns 0 where the block must be measured exactly. */
INLINE int measure_second(
    enum format format, enum second second, const struct block *b, const struct before *old, const struct scalars *s, double *row)
{
    vi even = {0}, stuck = {0}, high = {0}, zero = {0}, low = {0}, under = {0};
    vf total = {0};
    const int counts_underflow = format == FLOAT16 && second != WIDE;
    float small = s->v_limit > 0x1p-101 && !counts_underflow ? (float)s->v_limit * 1.01f : SMALL_SQUARE;
    for (long i = 0; i < b->numel; i += FEW * LANES) {
        vf g[FEW], v[FEW], now[FEW], rest[FEW], away[FEW];
        vi same[FEW];
        read_some(format, b->grad, i, g, FEW);
        if (second == TWO_EXACT)
            read_some_exact(old->v, old->v_lo, i, v, FEW);
        else
            read_some_moment(format, second, old->v, i, v);
        FOR_FEW rest[k] = (vf){0};
        if (second == TWO_WORDS) read_some(format, old->v_lo, i, rest, FEW);
        if (format == BFLOAT16 && second != WIDE) {
            int both = second != ONE_WORD;
            unchanged_words(old->v, b->v, both ? old->v_lo : NULL, b->v_lo, i, same);
        } else {
            read_some_moment(format, second, b->v, i, now);
            FOR_FEW same[k] = (vi)now[k] == (vi)v[k];
            if (second == TWO_WORDS) {
                read_some(format, b->v_lo, i, now, FEW);
                FOR_FEW same[k] &= (vi)now[k] == (vi)rest[k];
            }
        }
        FOR_FEW g[k] *= s->scale;
        FOR_FEW g[k] *= g[k];
        FOR_FEW away[k] = g[k] - v[k]; /* exact where it matters, near v; then compared with the second word */
        for (int k = 0; k < FEW; k++) {
            vi at_rest = away[k] == rest[k];
            same[k] &= ~at_rest;
            even += at_rest;
            stuck += same[k];
            high += same[k] & (away[k] < rest[k]);
            low += g[k] < small;
            zero += g[k] == 0;
            if (counts_underflow) under += g[k] <= (float)s->v_limit;
            total += away[k];
        }
    }
    int64_t zeros = -count_of(zero);
    if (!isfinite(sum_of(total)) || -count_of(low) != zeros) return 0;
    row[V_ATTEMPTED] += (double)(b->numel + count_of(even));
    row[V_STUCK] -= (double)count_of(stuck);
    row[V_STUCK_HIGH] -= (double)count_of(high);
    row[ZERO_GRAD] += (double)zeros;
    if (counts_underflow) row[V_UNDERFLOWED] -= (double)(count_of(under) + zeros);
    return 1;
}

/* Biased exponent fields, in place: of r, the resolution of what is stored of w in the direction of u. */
INLINE vi resolution_field(enum format format, enum weight weight, vf w, vf u)
{
    vi bits = (vi)magnitude(w) + ((vi)((vu)w ^ (vu)u) >> 31); /* −1 at 0, which the limit below takes care of */
    int emin = format == FLOAT16 && weight != MASTER && weight != EXACT ? -14 : -126;
    return at_least(bits, all_int((emin + 127) << 23)) & 0x7f800000;
}

/* Expected roundings, and the histograms of headroom if they are wanted. `u` holds no subnormal number. */
INLINE void measure_headroom(
    enum format format, enum weight weight, const struct block *b, const struct before *old, const float *u, struct tally *tally, int bins)
{
    const int digits = weight == MASTER || weight == EXACT ? 24 : precision(format);
    const int pair = weight == PAIR || weight == KAHAN;
    const int shift = digits - 1 + (pair ? digits : 0); /* r = 2^(exponent − shift) */
    vf expected = {0};
    uint8_t bin[BLOCK];
    for (long i = 0; i < b->numel; i += FEW * LANES) {
        vf w[FEW];
        if (weight == MASTER)
            read_some_wide(format, old->master, i, w, FEW);
        else if (weight == EXACT)
            read_some_exact(old->param, old->lo, i, w, FEW);
        else
            read_some(format, old->param, i, w, FEW);
        for (int k = 0; k < FEW; k++) {
            vf x = load_f32(u + i + k * LANES);
            vi field = resolution_field(format, weight, w[k], x), own = (vi)x & 0x7f800000;
            if (pair && format == FLOAT16) field = at_least(field, all_int((shift - 24 + 127) << 23));
            vf times = (vf)(vu)((254 << 23) - field); /* 2^−exponent */
            expected += at_most((vf)own * times * (1.41421356f * (float)(1u << shift)), all(1));
            if (!bins) continue;
            vi index = ((own - field) >> 23) + (shift - BIN_LOW);
            index = at_least(index, all_int(0));
            index = -at_least(-index, all_int(1 - BINS));
            for (int lane = 0; lane < LANES; lane++) bin[i + k * LANES + lane] = (uint8_t)index[lane];
        }
    }
    tally->row[EXPECTED_ROUNDINGS] += sum_of(expected);
    if (bins) count_bins(bin, u, b->numel, tally);
}

/* Each of these loops is compiled once per kind of storage: KIND(FORMAT, WEIGHT) for what a weight is kept in. */
#define EVERY_KIND                                                                                                   \
    KIND(BFLOAT16, PLAIN)                                                                                            \
    KIND(BFLOAT16, PAIR)                                                                                             \
    KIND(BFLOAT16, EXACT)                                                                                            \
    KIND(BFLOAT16, MASTER)                                                                                           \
    KIND(FLOAT16, PLAIN)                                                                                             \
    KIND(FLOAT16, PAIR)                                                                                              \
    KIND(FLOAT16, MASTER)                                                                                            \
    KIND(FLOAT32, PLAIN)

/* How a weight is kept, for the statistics: the ways of rounding do not differ in that. */
static enum weight kept_as(enum weight weight)
{
    return weight == KAHAN ? PAIR : weight == STOCHASTIC ? PLAIN : weight;
}

static int weights_of(
    enum format format, enum weight weight, const struct block *b, const struct before *old, const float *u, double *row, float *smallest_w)
{
#define KIND(FORMAT, WEIGHT)                                                                                         \
    if (format == FORMAT && weight == WEIGHT) return measure_weight(FORMAT, WEIGHT, b, old, u, row, smallest_w);
    EVERY_KIND
#undef KIND
    return 0;
}

static void decay_of(
    enum format format,
    enum weight weight,
    const struct block *b,
    const struct before *old,
    const struct scalars *s,
    float smallest_w,
    double *row)
{
#define KIND(FORMAT, WEIGHT)                                                                                         \
    if (format == FORMAT && weight == WEIGHT) measure_decay(FORMAT, WEIGHT, b, old, s, smallest_w, row);
    EVERY_KIND
#undef KIND
}

static void headroom_of(
    enum format format, enum weight weight, const struct block *b, const struct before *old, const float *u, struct tally *tally, int bins)
{
#define KIND(FORMAT, WEIGHT)                                                                                         \
    if (format == FORMAT && weight == WEIGHT) {                                                                      \
        if (bins)                                                                                                    \
            measure_headroom(FORMAT, WEIGHT, b, old, u, tally, 1);                                                   \
        else                                                                                                         \
            measure_headroom(FORMAT, WEIGHT, b, old, u, tally, 0);                                                   \
    }
    EVERY_KIND
#undef KIND
}

static int seconds_of(
    enum format format, enum second second, const struct block *b, const struct before *old, const struct scalars *s, double *row)
{
#define KIND(FORMAT, SECOND)                                                                                         \
    if (format == FORMAT && second == SECOND) return measure_second(FORMAT, SECOND, b, old, s, row);
    KIND(BFLOAT16, ONE_WORD)
    KIND(BFLOAT16, TWO_WORDS)
    KIND(BFLOAT16, TWO_EXACT)
    KIND(BFLOAT16, WIDE)
    KIND(FLOAT16, ONE_WORD)
    KIND(FLOAT16, TWO_WORDS)
    KIND(FLOAT16, WIDE)
    KIND(FLOAT32, ONE_WORD)
#undef KIND
    return 0;
}

static void measure_block(
    const struct job *job, const struct block *b, const struct before *old, const float *u, struct tally *tally, int bins)
{
    double row[ROW] = {0};
    float smallest_w;
    const enum format format = (enum format)job->format;
    const enum weight weight = kept_as((enum weight)job->weight);
    const enum second second = (enum second)job->second;
    if (b->valid != b->numel || !weights_of(format, weight, b, old, u, row, &smallest_w) ||
        !seconds_of(format, second, b, old, &job->scalars, row)) {
        measure_exactly(format, weight, second, job->has_decay, b, &job->scalars, old, u, tally);
        return;
    }
    if (job->has_decay) decay_of(format, weight, b, old, &job->scalars, smallest_w, row);
    for (int c = 0; c < ROW; c++) tally->row[c] += row[c];
    headroom_of(format, weight, b, old, u, tally, bins);
}

#endif
