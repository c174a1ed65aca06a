/* Exponents of u against the resolution of what is stored, two elements to a lane: expected roundings, histograms of
   headroom, and the counts of words that are 0 or did not change. */
#ifndef ROUNDOFF_HEADROOM_H
#define ROUNDOFF_HEADROOM_H

#include "before.h"

#define FIELD 0x7f80 /* of the exponent, in the upper half of a binary32 number */

/* The exponent field of r, the resolution of what is stored of w in the direction of u, over 2^shift. */
INLINE vi resolution_field(enum format format, enum weight weight, vf w, vf u)
{
    vi bits = (vi)magnitude(w) + ((vi)((vu)w ^ (vu)u) < 0); /* −1 at 0, which the limit below takes care of */
    int emin = format == FLOAT16 && weight != MASTER && weight != EXACT ? -14 : -126;
    return at_least(bits, all_int((emin + 127) << 23));
}

/* r = 2^(exponent − shift). */
INLINE int resolution_shift(enum format format, enum weight weight)
{
    const int digits = weight == MASTER || weight == EXACT ? 24 : precision(format);
    return digits - 1 + (weight == PAIR || weight == KAHAN ? digits : 0);
}

/* Two vectors of `resolution_field` from element i on, in half lanes; `u` is their upper halves of u. */
INLINE vh resolution_fields(enum format format, enum weight weight, const struct before *old, long i, vh u, const float *intended)
{
    vf w[2];
    vh field;
    if (format == BFLOAT16 && weight != MASTER && weight != EXACT) {
        vh word = (vh)load(old->param + 2 * i);
        field = larger((word & 0x7fff) + ((word ^ u) < 0), all_half(1 << 7));
        return field & FIELD;
    }
    read_first(format, weight, old, i, w, 2);
    for (int k = 0; k < 2; k++) w[k] = (vf)resolution_field(format, weight, w[k], load_f32(intended + i + k * LANES));
    field = joined_tops((vu)w[0], (vu)w[1]) & FIELD;
    if (format == FLOAT16 && weight == PAIR) /* no second word is finer than 2^−24 */
        field = larger(field, all_half((int16_t)((resolution_shift(format, weight) - 24 + 127) << 7)));
    return field;
}

/* Sums over one block. Comparisons are added up as they are, −1 for true. */
struct reached {
    vh same, none, small, whole; /* word unchanged; u below the normal numbers; below binary16's; k >= 0 */
    vh least;             /* of the upper halves of words, without the sign */
    vf share;             /* Σ 2^min(k, 0) */
};

/* With `careful`, elements of u = 0 are left out of `whole` and `share`. */
INLINE void reach(
    enum format format,
    enum weight weight,
    int careful,
    const struct block *b,
    const struct before *old,
    const float *intended,
    uint8_t *bin,
    struct reached *f)
{
    const int shift = resolution_shift(format, weight);
    const vh unit = all_half((int16_t)(-shift * 128)); /* own − field from here on: k >= 0 */
    for (long i = 0; i < b->numel; i += 2 * LANES) {
        vh u = joined_tops((vu)load_f32(intended + i), (vu)load_f32(intended + i + LANES));
        vh own = u & FIELD, field = resolution_fields(format, weight, old, i, u, intended), word, ahead, none = own == 0;
        if (format == FLOAT32) {
            vu first = load(old->param + 4 * i), second = load(old->param + 4 * (i + LANES));
            f->same += joined((vi)(first == load(b->param + 4 * i)), (vi)(second == load(b->param + 4 * (i + LANES))));
            word = joined_tops(first, second);
        } else {
            word = (vh)load(old->param + 2 * i);
            f->same += word == (vh)load(b->param + 2 * i);
        }
        f->least = smaller(f->least, word & 0x7fff);
        f->none += none;
        if (format == FLOAT16) f->small += own < (127 - 24) << 7;
        ahead = own - field;
        if (careful) ahead = (ahead & ~none) | (none & INT16_MIN);
        f->whole += ahead >= unit;
        vh power = larger(smaller(ahead, unit) + (int16_t)((127 + shift) * 128), (vh){0});
        f->share += (vf)moved_up((vu)power) + (vf)((vu)power & HIGH);
        if (bin == NULL) continue;
        vi even = ((vi)((vu)ahead << 16) >> 23) + (shift - BIN_LOW), odd = ((vi)ahead >> 23) + (shift - BIN_LOW);
        even = -at_least(-at_least(even, all_int(0)), all_int(1 - BINS));
        odd = -at_least(-at_least(odd, all_int(0)), all_int(1 - BINS));
        for (int lane = 0; lane < LANES; lane++) bin[i + lane] = (uint8_t)even[lane];
        for (int lane = 0; lane < LANES; lane++) bin[i + LANES + lane] = (uint8_t)odd[lane];
    }
}

/* 2^(k + ½) for each element of a bin k, at most 1 (numerics §4). */
INLINE double expected_roundings(const struct reached *f)
{
    double whole = (double)times_true(f->whole);
    return whole + 1.4142135623730951 * ((double)sum_of(f->share) - whole);
}

#endif
