/* The words of a block as they were before its step, and small pieces that both ways of measuring share. */
#ifndef ROUNDOFF_BEFORE_H
#define ROUNDOFF_BEFORE_H

#include "block.h"
#include "words.h"

struct before {
    char param[4 * BLOCK], lo[2 * BLOCK], master[4 * BLOCK], v[4 * BLOCK], v_lo[2 * BLOCK];
};

/* Copy the words of one step of the loops before they are written: beside arithmetic it costs next to nothing. */
INLINE void remember(long width, char *to, const char *from, long i)
{
    for (long at = width * i; at < width * (i + STEP); at += 4 * LANES) store(to + at, load(from + at));
}

/* What the spacing of a weight goes by: its master, its exact value or the visible word. */
INLINE void read_first(enum format format, enum weight weight, const struct before *old, long i, vf *x, int vectors)
{
    if (weight == MASTER)
        read_some_wide(format, old->master, i, x, vectors);
    else if (weight == EXACT)
        read_some_exact(old->param, old->lo, i, x, vectors);
    else
        read_some(format, old->param, i, x, vectors);
}

INLINE int precision(enum format format) { return format == BFLOAT16 ? 8 : format == FLOAT16 ? 11 : 24; }

INLINE vf rounded_to(enum format format, vf x)
{
    return format == BFLOAT16 ? top(round_bf16(x)) : format == FLOAT16 ? through_f16(x) : x;
}

/* Element counts and Σu² by bin; u = 0 is not binned. */
INLINE void count_bins(const uint8_t *bin, const float *u, long numel, struct tally *tally)
{
    /* Neighbours often fall into one bin: two tables, so that one addition does not wait for the last. */
    int32_t counts[2][BINS] = {{0}};
    double energy[2][BINS] = {{0}}; /* a bin's squares may lie below binary32's range where the block's do not */
    for (long i = 0; i < numel; i++) {
        counts[i & 1][bin[i]] += u[i] != 0;
        energy[i & 1][bin[i]] += (double)u[i] * (double)u[i];
    }
    for (int k = 0; k < BINS; k++) {
        tally->counts[k] += counts[0][k] + counts[1][k];
        tally->energy[k] += energy[0][k] + energy[1][k];
    }
}

#endif
