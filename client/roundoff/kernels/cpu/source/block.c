/* Compiled once per instruction set; INSTRUCTION_SET names what it exports. */
#include "statistics.h"
#include "update.h"

#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)

/* Every combination is a loop of its own, so that nothing is decided per element. */
#define VARIANT(FORMAT, WEIGHT, SECOND)                                                                              \
    if (job->format == FORMAT && job->weight == WEIGHT && job->second == SECOND) {                                   \
        if (job->has_decay)                                                                                          \
            run(FORMAT, WEIGHT, SECOND, 1, job, b, tally, bins);                                                     \
        else                                                                                                         \
            run(FORMAT, WEIGHT, SECOND, 0, job, b, tally, bins);                                                     \
        return;                                                                                                      \
    }

INLINE void run(
    enum format format,
    enum weight weight,
    enum second second,
    int has_decay,
    const struct job *job,
    const struct block *b,
    struct tally *tally,
    int bins)
{
    float numerator[BLOCK] __attribute__((aligned(64))), root[BLOCK] __attribute__((aligned(64)));
    if (tally == NULL) {
        update_block(format, weight, second, has_decay, 0, b, &job->scalars, NULL, numerator, root);
        return;
    }
    struct before before __attribute__((aligned(64)));
    update_block(format, weight, second, has_decay, 1, b, &job->scalars, &before, numerator, root);
    measure_block(job, b, &before, numerator, tally, bins);
}

static void step(const struct job *job, const struct block *b, struct tally *tally, int bins)
{
    VARIANT(BFLOAT16, PLAIN, ONE_WORD)
    VARIANT(BFLOAT16, PAIR, ONE_WORD)
    VARIANT(BFLOAT16, PAIR, TWO_WORDS)
    VARIANT(BFLOAT16, KAHAN, ONE_WORD)
    VARIANT(BFLOAT16, STOCHASTIC, ONE_WORD)
    VARIANT(BFLOAT16, PLAIN, WIDE)
    VARIANT(BFLOAT16, MASTER, WIDE)
    VARIANT(BFLOAT16, EXACT, TWO_EXACT)
#if HAS_FLOAT16
    VARIANT(FLOAT16, PLAIN, ONE_WORD)
    VARIANT(FLOAT16, PAIR, ONE_WORD)
    VARIANT(FLOAT16, PAIR, TWO_WORDS)
    VARIANT(FLOAT16, KAHAN, ONE_WORD)
    VARIANT(FLOAT16, PLAIN, WIDE)
    VARIANT(FLOAT16, MASTER, WIDE)
#endif
    VARIANT(FLOAT32, PLAIN, ONE_WORD)
}

static void copy_if_kept(char *to, const char *from, long bytes)
{
    if (from != NULL) memcpy(to, from, (size_t)bytes);
}

static void measure(const struct job *job, const struct block *b, struct tally *tally, int bins)
{
    const enum format format = (enum format)job->format;
    const long moment = job->second == WIDE ? 4 : width(format);
    float intended[BLOCK] __attribute__((aligned(64)));
    struct before before __attribute__((aligned(64)));
    copy_if_kept(before.param, b->taken.param, width(format) * b->numel);
    copy_if_kept(before.lo, b->taken.lo, 2 * b->numel);
    copy_if_kept(before.master, b->taken.master, 4 * b->numel);
    copy_if_kept(before.v, b->taken.v, moment * b->numel);
    copy_if_kept(before.v_lo, b->taken.v_lo, 2 * b->numel);
    for (long i = 0; i < b->numel; i += STEP) {
        vf u[CHAINS];
        read_wide(format, b->taken.intended, i, u);
        EACH store(intended + i + k * LANES, (vu)u[k]);
    }
    measure_block(job, b, &before, intended, tally, bins);
}

const struct kernels NAMED(roundoff_kernels_, INSTRUCTION_SET) = {STEP, HAS_FLOAT16, step, measure};
