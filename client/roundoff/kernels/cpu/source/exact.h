/* The statistics of numerics §4 written out, an element at a time in binary64: for blocks with values that are not
   finite or out of the comfortable range of binary32, and for the end of a tensor that does not fill its vectors. */
#ifndef ROUNDOFF_EXACT_H
#define ROUNDOFF_EXACT_H

#include "before.h"

/* Element i of words of a format, in memory order. */
static float word_at(enum format format, const char *words, long i)
{
    if (format == FLOAT32) return ((const float *)words)[i];
    uint16_t word = ((const uint16_t *)words)[i];
    if (format == BFLOAT16) {
        uint32_t bits = (uint32_t)word << 16;
        float x;
        memcpy(&x, &bits, 4);
        return x;
    }
    int exponent = word >> 10 & 31, fraction = word & 1023;
    float x = exponent == 31 ? (fraction ? NAN : INFINITY)
                             : ldexpf((float)(exponent ? fraction | 1024 : fraction), (exponent ? exponent : 1) - 25);
    return word & 0x8000 ? -x : x;
}

static float joined_at(const char *words, const char *rest, long i)
{
    uint32_t bits = ((uint32_t)((const uint16_t *)words)[i] << 16) + (uint32_t)(int32_t)((const int16_t *)rest)[i];
    float x;
    memcpy(&x, &bits, 4);
    return isnan(x) ? word_at(BFLOAT16, words, i) : x;
}

/* Where element i of the block stands in a buffer that the loops filled in the order of `read_words`. */
static long place(enum format format, long i)
{
    if (format != BFLOAT16) return i;
    long step = i / (2 * LANES) * (2 * LANES), within = i % (2 * LANES);
    return step + within / 2 + within % 2 * LANES;
}

static float round_one(enum format format, float x)
{
    return format == BFLOAT16 ? rounded_to(BFLOAT16, all(x))[0] : format == FLOAT16 ? rounded_to(FLOAT16, all(x))[0] : x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* log2 of the resolution of what is stored at w in the direction of u. */
static int resolution(enum format format, enum weight weight, float w, float u)
{
    int wide = weight == MASTER || weight == EXACT, pair = weight == PAIR || weight == KAHAN;
    int digits = wide ? 24 : precision(format), emin = !wide && format == FLOAT16 ? -14 : -126;
    int toward_zero = (bits_of(w) ^ bits_of(u)) >> 31;
    int field = (int)(((bits_of(w) & 0x7fffffffu) - (uint32_t)(toward_zero && w != 0)) >> 23);
    int exponent = field - 127 < emin ? emin : field - 127;
    int log2_gap = exponent - (digits - 1);
    if (!pair) return log2_gap;
    return format == FLOAT16 && log2_gap - digits < -24 ? -24 : log2_gap - digits;
}

struct element {
    float hi, lo, whole, seen, applied;
};

static struct element element_at(enum format format, enum weight weight, const struct block *b, const struct before *old, long i)
{
    struct element e = {word_at(format, old->param, i), 0, 0, 0, 0};
    e.seen = word_at(format, b->param, i) - e.hi;
    e.whole = e.hi;
    e.applied = e.seen;
    if (weight == PAIR || weight == KAHAN) {
        e.lo = word_at(format, old->lo, i);
        e.applied = e.seen + (word_at(format, b->lo, i) - e.lo);
    } else if (weight == MASTER) {
        e.whole = word_at(FLOAT32, old->master, i);
        e.applied = word_at(FLOAT32, b->master, i) - e.whole;
    } else if (weight == EXACT) {
        e.whole = joined_at(old->param, old->lo, i);
        e.applied = joined_at(b->param, b->lo, i) - e.whole;
    }
    return e;
}

/* Whether adding d alone leaves everything stored unchanged. */
static int keeps(enum format format, enum weight weight, const struct element *e, float d)
{
    if (weight == MASTER || weight == EXACT) return e->whole + d == e->whole;
    float t = e->hi + (weight == PAIR || weight == KAHAN ? e->lo + d : d);
    float word = round_one(format, t);
    if (weight == PAIR || weight == KAHAN) return word == e->hi && round_one(format, t - word) == e->lo;
    return word == e->hi;
}

static void second_at(enum format format, enum second second, const struct block *b, const struct before *old, const struct scalars *s, long i, double *row)
{
    if (second == UNSEEN) return;
    double g = (double)(word_at(format, b->grad, i) * s->scale), square = g * g, v;
    const long size = second == WIDE || format == FLOAT32 ? 4 : 2;
    int moved = memcmp(old->v + size * i, b->v + size * i, (size_t)size) != 0;
    if (second == TWO_WORDS || second == TWO_EXACT) moved |= memcmp(old->v_lo + 2 * i, b->v_lo + 2 * i, 2) != 0;
    if (second == WIDE)
        v = (double)word_at(FLOAT32, old->v, i);
    else if (second == TWO_EXACT)
        v = (double)joined_at(old->v, old->v_lo, i);
    else
        v = (double)word_at(format, old->v, i) + (second == TWO_WORDS ? (double)word_at(format, old->v_lo, i) : 0);
    row[ZERO_GRAD] += g == 0;
    if (!isfinite(square) || !isfinite(v)) return;
    row[V_ATTEMPTED] += square != v;
    row[V_STUCK] += square != v && !moved;
    row[V_STUCK_HIGH] += square < v && !moved;
    row[V_UNDERFLOWED] += g != 0 && square <= s->v_limit;
}

/* Every column and both histograms of one block. `u` is in the order of the loops. */
static __attribute__((noinline)) void measure_exactly(
    enum format format,
    enum weight weight,
    enum second second,
    int has_decay,
    const struct block *b,
    const struct scalars *s,
    const struct before *old,
    const float *intended,
    struct tally *tally)
{
    const double smallest = format == BFLOAT16 ? 0x1p-133 : format == FLOAT16 ? 0x1p-24 : 0x1p-149;
    double *row = tally->row;
    for (long i = 0; i < b->valid; i++) {
        struct element e = element_at(format, weight, b, old, i);
        float u = intended[place(format, i)];
        double u64 = (double)u, a = (double)e.applied, seen = (double)e.seen;
        double whole = weight == PAIR || weight == KAHAN ? (double)e.hi + (double)e.lo : (double)e.whole;
        row[NUMEL] += 1;
        if (!isfinite(u) || !isfinite(e.seen) || !isfinite(e.applied)) {
            row[NONFINITE] += 1;
            continue;
        }
        row[UNCHANGED] += seen == 0;
        row[SUM_UU] += u64 * u64, row[SUM_UA] += u64 * a, row[SUM_AA] += a * a;
        row[SUM_US] += u64 * seen, row[SUM_SS] += seen * seen, row[SUM_WW] += whole * whole;
        second_at(format, second, b, old, s, i, row);
        float d = (float)whole * s->decay;
        if (weight == PAIR || weight == KAHAN) d = (e.hi + e.lo) * s->decay;
        if (has_decay && d != 0 && isfinite(d)) {
            row[DECAY_ATTEMPTED] += 1;
            row[DECAY_LOST] += keeps(format, weight, &e, d);
        }
        if (u == 0) continue;
        row[ATTEMPTED] += 1;
        row[LOST] += a == 0;
        row[INVISIBLE] += seen == 0;
        row[UNDERFLOWED] += fabs(u64) <= smallest / 2;
        int k = ilogb(u64) - resolution(format, weight, weight == MASTER || weight == EXACT ? e.whole : e.hi, u);
        k = k < BIN_LOW ? BIN_LOW : k > BIN_LOW + BINS - 1 ? BIN_LOW + BINS - 1 : k;
        row[EXPECTED_ROUNDINGS] += k >= 0 ? 1 : ldexp(1.4142135623730951, k);
        tally->counts[k - BIN_LOW] += 1;
        tally->energy[k - BIN_LOW] += u64 * u64;
    }
}

#endif
