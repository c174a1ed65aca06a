/* The statistics of one block, numerics §4, in vectors: counts exactly, sums in binary32 over one block.

   What binary32 cannot hold, values that are not finite and sums out of its comfortable range, sends the block to
   `measure_exactly` in exact.h, which is the definition written out, an element at a time. The division of the work
   into loops is for the compiler: each keeps few enough values to hold them in registers. */
#ifndef ROUNDOFF_STATISTICS_H
#define ROUNDOFF_STATISTICS_H

#include "exact.h"
#include "headroom.h"
#include "second.h"

#define COMFORTABLE 1e-25f /* a block's sum of squares from here on has lost nothing that shows to underflow */

/* Vectors that these loops take at a time: more would not stay in registers beside the sums. */
#define FEW 2
#define FOR_FEW for (int k = 0; k < FEW; k++)

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

/* Of one block: sums, comparisons that were added up (−1 for true), and the smallest abs(w). */
struct found {
    vf uu, ua, aa, us, ss, ww, smallest_w;
    vi lost, decay_lost;
};

/* −lr·wd up to which the second word alone decides. Where the first changed, it did so by at least 2^−9 of itself, and
   for the second to come out as it was, d has to be as large as that. */
#define LITTLE_DECAY 0x1p-12f

/* Where adding the decay term d alone would leave both words of a pair as they are. */
INLINE vi pair_keeps(enum format format, vf hi, vf lo, vf d)
{
    vf t = hi + (lo + d);
    return rounded_to(format, t - rounded_to(format, t)) == lo;
}

/* Products of u, a, s and w, and what was lost of weights that keep more than the word; for a pair that `decays` also
   what was lost of the decay term. */
INLINE void look(
    enum format format,
    enum weight weight,
    int decays,
    const struct block *b,
    const struct before *old,
    const struct scalars *s,
    const float *u,
    struct found *f)
{
    f->smallest_w = all(1);
    for (long i = 0; i < b->numel; i += FEW * LANES) {
        struct words w;
        read_both(format, weight, b, old, i, &w);
        for (int k = 0; k < FEW; k++) {
            vf intended = load_f32(u + i + k * LANES), seen = w.seen[k], applied = w.applied[k];
            f->uu += intended * intended;
            f->ua += intended * applied;
            f->aa += applied * applied;
            f->ww += w.whole[k] * w.whole[k];
            if (decays || weight != PLAIN) f->smallest_w = at_most(magnitude(w.whole[k]), f->smallest_w);
            if (weight == PLAIN) continue;
            f->lost += applied == 0;
            f->us += intended * seen;
            f->ss += seen * seen;
            if (decays && weight == PAIR && format == BFLOAT16) f->decay_lost += pair_keeps(format, w.hi[k], w.lo[k], w.whole[k] * s->decay);
        }
    }
    if (weight == PLAIN) f->us = f->ua, f->ss = f->aa;
}

struct counts {
    int64_t tries, lost, invisible, unchanged, under;
};

/* The counts one by one, for blocks in which some u or some word is 0. Returns 0 if some u is subnormal. */
INLINE int recount(
    enum format format, enum weight weight, const struct block *b, const struct before *old, const float *u, struct counts *c)
{
    vi zero_u = {0}, lost = {0}, invisible = {0}, unchanged = {0}, under = {0};
    vf smallest = all(1);
    for (long i = 0; i < b->numel; i += FEW * LANES) {
        struct words w;
        read_both(format, weight, b, old, i, &w);
        for (int k = 0; k < FEW; k++) {
            vf intended = load_f32(u + i + k * LANES), size = magnitude(intended);
            vi zero = intended == 0, same = w.seen[k] == 0;
            zero_u += zero;
            unchanged += same;
            invisible += same & ~zero;
            lost += (w.applied[k] == 0) & ~zero;
            smallest = at_most((vf)((vu)size | ((vu)zero & 0x3f800000u)), smallest);
            if (format == FLOAT16) under += (size <= 0x1p-25f) & ~zero;
        }
    }
    *c = (struct counts){b->numel + count_of(zero_u), -count_of(lost), -count_of(invisible), -count_of(unchanged), -count_of(under)};
    return smallest_of(smallest) >= 0x1p-126f; /* binary32 holds it as a normal number */
}

/* Everything but the second moment and the decay. Returns 0 where the block must be measured exactly. */
INLINE int measure_weight(
    enum format format,
    enum weight weight,
    int decays,
    const struct block *b,
    const struct before *old,
    const struct scalars *s,
    const float *u,
    struct tally *tally,
    int bins,
    struct found *f)
{
    double *row = tally->row;
    uint8_t bin[BLOCK];
    look(format, weight, decays, b, old, s, u, f);
    float uu = sum_of(f->uu), aa = sum_of(f->aa), ss = sum_of(f->ss), ww = sum_of(f->ww);
    if (!isfinite(uu + aa + ss + ww) || (ww > 0 && ww < COMFORTABLE)) return 0;
    struct reached r = {.least = all_half(INT16_MAX)};
    reach(format, weight, 0, b, old, u, bins ? bin : NULL, &r);
    int64_t same = times_true(r.same), none = times_true(r.none);
    struct counts c = {b->numel, weight == PLAIN ? same : -count_of(f->lost), same, same, 0};
    if (none || smallest_half(r.least) == 0 || times_true(r.small)) {
        if (!recount(format, weight, b, old, u, &c)) return 0;
        if (none) {
            r = (struct reached){.least = r.least};
            reach(format, weight, 1, b, old, u, NULL, &r);
        }
    }
    if (c.tries && uu < COMFORTABLE) return 0;
    if (c.tries > c.lost && aa < COMFORTABLE) return 0;
    if (c.tries > c.invisible && ss < COMFORTABLE) return 0;
    if (weight == PLAIN && !decays) f->smallest_w = all(format == BFLOAT16 ? from_bf16(smallest_half(r.least)) : 0);
    row[NUMEL] += (double)b->numel;
    row[ATTEMPTED] += (double)c.tries;
    row[LOST] += (double)c.lost;
    row[INVISIBLE] += (double)c.invisible;
    row[UNCHANGED] += (double)c.unchanged;
    row[UNDERFLOWED] += (double)c.under;
    row[SUM_UU] += uu, row[SUM_UA] += sum_of(f->ua), row[SUM_AA] += aa;
    row[SUM_US] += sum_of(f->us), row[SUM_SS] += ss, row[SUM_WW] += ww;
    row[EXPECTED_ROUNDINGS] += expected_roundings(&r);
    if (bins) count_bins(bin, u, b->numel, tally);
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
        read_first(format, weight, old, i, hi, FEW);
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

/* The same where the ratio of the term to the weight alone decides, since −lr·wd is one number for all, or where `look`
   has counted. Toward zero half the gap of a p-bit number w is at least 2^−(p+1)·abs(w) and less than 2^−p·abs(w), so a
   plain word never moves below the one and always above the other. */
INLINE void measure_decay(
    enum format format,
    enum weight weight,
    const struct block *b,
    const struct before *old,
    const struct scalars *s,
    const struct found *f,
    double *row)
{
    const int wide = weight == MASTER || weight == EXACT;
    const float ratio = fabsf(s->decay), half = ldexpf(1, -(wide ? 24 : precision(format)));
    int never = weight != PAIR && !(wide || format == FLOAT32) && ratio < half / 4;
    int counted = weight == PAIR && format == BFLOAT16 && ratio < LITTLE_DECAY;
    int always = weight != PAIR && format != FLOAT16 && ratio > half * 4;
    if (ratio == 0) return; /* a learning rate of 0: no term is tried */
    if (smallest_of(f->smallest_w) < 0x1p-90f || ratio < 0x1p-30f || !(never || always || counted)) {
        try_decay(format, weight, b, old, s, row);
        return;
    }
    row[DECAY_ATTEMPTED] += (double)b->numel;
    if (never) row[DECAY_LOST] += (double)b->numel;
    if (counted) row[DECAY_LOST] -= (double)count_of(f->decay_lost);
}

/* How a weight is kept, for the statistics: the ways of rounding do not differ in that. */
INLINE enum weight kept_as(enum weight weight)
{
    return weight == KAHAN ? PAIR : weight == STOCHASTIC ? PLAIN : weight;
}

/* Each of these loops is compiled once per kind of storage, not per strategy: not inlined. */
#define KIND(FORMAT, WEIGHT)                                                                                         \
    static __attribute__((noinline)) int measure_##FORMAT##_##WEIGHT(                                                \
        int has_decay, const struct block *b, const struct before *old, const struct scalars *s, const float *u,     \
        struct tally *tally, int bins)                                                                               \
    {                                                                                                                \
        struct found f = {0};                                                                                        \
        int good = has_decay && (WEIGHT == PAIR || FORMAT != BFLOAT16)                                               \
                       ? measure_weight(FORMAT, WEIGHT, 1, b, old, s, u, tally, bins, &f)                            \
                       : measure_weight(FORMAT, WEIGHT, 0, b, old, s, u, tally, bins, &f);                           \
        if (good && has_decay) measure_decay(FORMAT, WEIGHT, b, old, s, &f, tally->row);                             \
        return good;                                                                                                 \
    }
#define EVERY_KIND                                                                                                   \
    KIND(BFLOAT16, PLAIN)                                                                                            \
    KIND(BFLOAT16, PAIR)                                                                                             \
    KIND(BFLOAT16, EXACT)                                                                                            \
    KIND(BFLOAT16, MASTER)                                                                                           \
    KIND(FLOAT16, PLAIN)                                                                                             \
    KIND(FLOAT16, PAIR)                                                                                              \
    KIND(FLOAT16, MASTER)                                                                                            \
    KIND(FLOAT32, PLAIN)
EVERY_KIND
#undef KIND

static int measure_kind(
    enum format format, enum weight weight, int has_decay, const struct block *b, const struct before *old, const struct scalars *s,
    const float *u, struct tally *tally, int bins)
{
#define KIND(FORMAT, WEIGHT)                                                                                         \
    if (format == FORMAT && weight == WEIGHT) return measure_##FORMAT##_##WEIGHT(has_decay, b, old, s, u, tally, bins);
    EVERY_KIND
#undef KIND
    return 0;
}

static int measure_moment(
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
    return second == UNSEEN;
}

static void measure_block(
    const struct job *job, const struct block *b, const struct before *old, const float *u, struct tally *tally, int bins)
{
    double row[ROW] = {0};
    const enum format format = (enum format)job->format;
    const enum weight weight = kept_as((enum weight)job->weight);
    const enum second second = (enum second)job->second;
    if (b->valid != b->numel || !measure_moment(format, second, b, old, &job->scalars, row) ||
        !measure_kind(format, weight, job->has_decay, b, old, &job->scalars, u, tally, bins)) {
        measure_exactly(format, weight, second, job->has_decay, b, &job->scalars, old, u, tally);
        return;
    }
    for (int c = 0; c < ROW; c++) tally->row[c] += row[c];
}

#endif
