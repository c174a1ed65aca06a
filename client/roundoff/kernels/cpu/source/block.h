/* What one call works on. `kernels/cpu/jobs.py` packs these structures: keep both alike, the size is checked. */
#ifndef ROUNDOFF_BLOCK_H
#define ROUNDOFF_BLOCK_H

#include <stdint.h>

#define BLOCK 1024 /* elements that go through all loops while they are in the first cache */
#define ROW 24     /* columns of one row of statistics, in the order of metrics.ROW */
#define BINS 33
#define BIN_LOW (-24)

/* metrics.ROW; the columns before SKIPPED and after FROZEN_OF are measured here. */
enum column {
    NUMEL, ATTEMPTED, LOST, INVISIBLE, UNCHANGED, DECAY_ATTEMPTED, DECAY_LOST, V_ATTEMPTED, V_STUCK, V_STUCK_HIGH,
    UNDERFLOWED, V_UNDERFLOWED, NONFINITE, ZERO_GRAD, SKIPPED, FROZEN, FROZEN_OF,
    SUM_UU, SUM_UA, SUM_AA, SUM_US, SUM_SS, SUM_WW, EXPECTED_ROUNDINGS
};

enum weight { PLAIN, PAIR, KAHAN, STOCHASTIC, EXACT, MASTER, WEIGHTS };
enum second { ONE_WORD, TWO_WORDS, TWO_EXACT, WIDE, UNSEEN };

struct scalars {
    float scale, beta1, rest1, beta2, rest2, step_size, root_scale, eps, decay;
    uint32_t noise, noise_high; /* the two halves of the key */
    uint64_t first;             /* index of element 0 for the random bits */
    double v_limit;             /* g² up to here times 1 − β2 rounds to 0 in the format of v */
};

struct job {
    char *param, *m, *v, *lo, *v_lo, *master; /* lo: second word or remainder; NULL where not kept */
    const char *grad;
    double *row, *bins; /* statistics, or NULL */
    int64_t numel;
    int32_t format, weight, second, has_decay;
    struct scalars scalars;
};

/* Of a step that somebody else took: the words before it, of which those of the job are what it left, and u as binary32
   in the order of memory. What is not kept is NULL. */
struct taken {
    const char *param, *lo, *master, *v, *v_lo, *intended;
};

struct block {
    char *param, *m, *v, *lo, *v_lo, *master;
    const char *grad;
    long numel;     /* a multiple of what one step of the loops takes */
    long valid;     /* so many of them are there, the rest is padding */
    uint64_t index; /* of its first element, for the random bits */
    struct taken taken;
};

/* One row of partial statistics. */
struct tally {
    double row[ROW], counts[BINS], energy[BINS];
};

/* One block of one tensor: update it, and measure it if `tally` is not NULL; or measure what was `taken`. */
typedef void step_block(const struct job *, const struct block *, struct tally *, int bins);

struct kernels {
    int step_elements, has_float16;
    step_block *step, *measure;
};

#define SAMPLED 32 /* words that are looked at of a tensor that has more */

/* What all steps of one tensor have in common, and the words that the last of them left. */
struct standing {
    int64_t numel, places[SAMPLED]; /* elements that are looked at, in memory */
    int32_t format, weight, second;
    int32_t has_lo, has_v_lo, has_master;
    int32_t sealed; /* whether words are kept at all */
    char words[4 * SAMPLED];
};

/* One tensor's turn in a step. `kernels/cpu/standing.py` makes these of numbers of 64 bits. */
struct turn {
    struct standing *standing;
    uint64_t noise;  /* key of the random bits */
    int64_t setting; /* number of its scalars */
};

struct setting {
    struct scalars scalars;
    int64_t has_decay;
};

#endif
