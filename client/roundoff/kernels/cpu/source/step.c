/* The entry points: cut the tensors of one optimizer step into chunks, and let the threads take them in turn. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"

#define CHUNK (16 * BLOCK) /* elements that a thread takes at a time */
#define MAX_STEP 256       /* no instruction set takes more elements in one step of its loops */

extern const struct kernels roundoff_kernels_baseline;
#if defined(__x86_64__)
extern const struct kernels roundoff_kernels_avx2, roundoff_kernels_avx512;
#endif

/* Found in the file before it is loaded, so that one made from another source is not. */
const char roundoff_source_hash[] = SOURCE_HASH;
int64_t roundoff_job_size(void) { return (int64_t)sizeof(struct job); }
int64_t roundoff_standing_size(void) { return (int64_t)sizeof(struct standing); }
int64_t roundoff_turn_size(void) { return (int64_t)sizeof(struct turn); }
int64_t roundoff_taken_size(void) { return (int64_t)sizeof(struct taken); }
int64_t roundoff_setting_size(void) { return (int64_t)sizeof(struct setting); }

/* The kernels for an instruction set, NULL if this processor does not have it. */
const struct kernels *roundoff_kernels(const char *instruction_set)
{
    if (strcmp(instruction_set, "baseline") == 0) return &roundoff_kernels_baseline;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (strcmp(instruction_set, "avx512") == 0 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
        return &roundoff_kernels_avx512;
    if (strcmp(instruction_set, "avx2") == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
        return &roundoff_kernels_avx2;
#endif
    return NULL;
}

int roundoff_has_float16(const struct kernels *kernels) { return kernels->has_float16; }

/* A few words of a tensor of `numel` words of `size` bytes (2 or 4), spread from the first to the last, into `out`. */
void roundoff_sample(const char *words, int size, int64_t numel, char *out)
{
    const int64_t count = numel < SAMPLED ? numel : SAMPLED;
    for (int64_t i = 0; i < count; i++)
        memcpy(out + i * size, words + (numel > SAMPLED ? i * (numel - 1) / (SAMPLED - 1) : i) * size, (size_t)size);
}

struct work {
    const struct kernels *kernels;
    const struct job *jobs;
    const struct taken *taken; /* of each job, if it is to be measured and not stepped; or NULL */
    const int64_t *first; /* number of each job's first chunk, and of the chunk after the last */
    int64_t count;
    struct tally *tallies; /* one per chunk, or NULL */
    int bins;
    _Atomic int64_t next;
};

static long bytes_of(const struct job *job, int wide) { return wide || job->format == 2 ? 4 : 2; }

static char *from(char *words, int64_t bytes) { return words ? words + bytes : NULL; }

static const char *behind(const char *words, int64_t bytes) { return words ? words + bytes : NULL; }

static struct block block_at(const struct job *job, const struct taken *taken, int64_t start, long numel)
{
    const long word = bytes_of(job, 0), moment = bytes_of(job, job->second == WIDE);
    struct block block = {
        .param = job->param + start * word,
        .grad = behind(job->grad, start * word),
        .m = from(job->m, start * moment),
        .v = from(job->v, start * moment),
        .lo = from(job->lo, start * 2),
        .v_lo = from(job->v_lo, start * 2),
        .master = from(job->master, start * 4),
        .numel = numel,
        .valid = numel,
        .index = (uint64_t)start,
    };
    if (taken != NULL)
        block.taken = (struct taken){
            .param = taken->param + start * word,
            .lo = behind(taken->lo, start * 2),
            .master = behind(taken->master, start * 4),
            .v = behind(taken->v, start * moment),
            .v_lo = behind(taken->v_lo, start * 2),
            .intended = taken->intended + start * 4,
        };
    return block;
}

/* A field of a block, and what it takes of memory per element. */
struct field {
    char **words;
    long width;
};

enum { FIELDS = 13 };

/* The end of a tensor that does not fill the vectors is taken in copies, padded with zeros. */
static void take_padded(const struct work *work, const struct job *job, struct block b, struct tally *tally, step_block *take)
{
    const long step = work->kernels->step_elements, word = bytes_of(job, 0), moment = bytes_of(job, job->second == WIDE);
    const long left = b.valid, padding = (left + step - 1) / step * step - left;
    _Alignas(64) char copies[FIELDS][4 * (BLOCK + MAX_STEP)];
    struct taken *taken = &b.taken;
    const struct field fields[FIELDS] = {
        {&b.param, word}, {&b.m, moment}, {&b.v, moment}, {&b.lo, 2}, {&b.v_lo, 2}, {&b.master, 4}, /* written */
        {(char **)&b.grad, word}, {(char **)&taken->param, word}, {(char **)&taken->lo, 2}, {(char **)&taken->master, 4},
        {(char **)&taken->v, moment}, {(char **)&taken->v_lo, 2}, {(char **)&taken->intended, 4},
    };
    char *originals[FIELDS];
    for (int f = 0; f < FIELDS; f++) {
        originals[f] = *fields[f].words;
        if (originals[f] == NULL) continue;
        memcpy(copies[f], originals[f], (size_t)(left * fields[f].width));
        memset(copies[f] + left * fields[f].width, 0, (size_t)(padding * fields[f].width));
        *fields[f].words = copies[f];
    }
    b.numel = left + padding;
    take(job, &b, tally, work->bins);
    for (int f = 0; f < 6 && take == work->kernels->step; f++)
        if (originals[f] != NULL) memcpy(originals[f], copies[f], (size_t)(left * fields[f].width));
}

static void take_chunk(const struct work *work, const struct job *job, int64_t chunk, struct tally *tally)
{
    const int64_t start = chunk * CHUNK, left = job->numel - start, end = start + (left < CHUNK ? left : CHUNK);
    const struct taken *taken = work->taken ? &work->taken[job - work->jobs] : NULL;
    step_block *take = taken ? work->kernels->measure : work->kernels->step;
    for (int64_t at = start; at < end; at += BLOCK) {
        const long numel = (long)(end - at < BLOCK ? end - at : BLOCK);
        struct block b = block_at(job, taken, at, numel);
        if (numel % work->kernels->step_elements)
            take_padded(work, job, b, tally, take);
        else
            take(job, &b, tally, work->bins);
    }
}

static void take_chunks(void *shared)
{
    struct work *work = shared;
    int64_t number;
    while ((number = atomic_fetch_add(&work->next, 1)) < work->first[work->count]) {
        int64_t low = 0, high = work->count; /* the job whose chunks include this one */
        while (high - low > 1) {
            const int64_t middle = (low + high) / 2;
            if (work->first[middle] <= number)
                low = middle;
            else
                high = middle;
        }
        struct tally *tally = work->tallies && work->jobs[low].row ? &work->tallies[number] : NULL;
        take_chunk(work, &work->jobs[low], number - work->first[low], tally);
    }
}

static void *take_chunks_in_thread(void *shared)
{
    take_chunks(shared);
    return NULL;
}

/* Threads of our own, where PyTorch's cannot be had. One that cannot be made leaves its share to the others. */
static void own_threads(struct work *work, int threads)
{
    pthread_t made[64];
    int count = 0;
    while (count < threads - 1 && count < 64 && !pthread_create(&made[count], NULL, take_chunks_in_thread, work)) count++;
    take_chunks(work);
    while (count > 0) pthread_join(made[--count], NULL);
}

/* In the order of the chunks, so that the sums do not depend on who did what. */
static void add_up(const struct work *work)
{
    for (int64_t j = 0; j < work->count; j++) {
        const struct job *job = &work->jobs[j];
        if (job->row == NULL) continue;
        for (int64_t number = work->first[j]; number < work->first[j + 1]; number++) {
            const struct tally *tally = &work->tallies[number];
            for (int c = 0; c < ROW; c++) job->row[c] += tally->row[c];
            for (int k = 0; work->bins && k < BINS; k++) {
                job->bins[k] += tally->counts[k];
                job->bins[BINS + k] += tally->energy[k];
            }
        }
    }
}

typedef void parallel(void (*)(void *), void *, unsigned, unsigned);

static int take_all(
    const struct kernels *kernels, const struct job *jobs, const struct taken *taken, int64_t count, int threads,
    parallel *gomp_parallel, int bins)
{
    int measured = 0;
    int64_t *first = malloc((size_t)(count + 1) * sizeof *first);
    if (first == NULL) return -1;
    first[0] = 0;
    for (int64_t j = 0; j < count; j++) {
        first[j + 1] = first[j] + (jobs[j].numel + CHUNK - 1) / CHUNK;
        measured |= jobs[j].row != NULL;
    }
    struct work work = {kernels, jobs, taken, first, count, NULL, bins, 0};
    if (measured) {
        work.tallies = calloc((size_t)(first[count] ? first[count] : 1), sizeof *work.tallies);
        if (work.tallies == NULL) {
            free(first);
            return -1;
        }
    }
    if (threads > first[count]) threads = (int)first[count];
    if (threads <= 1)
        take_chunks(&work);
    else if (gomp_parallel)
        gomp_parallel(take_chunks, &work, (unsigned)threads, 0);
    else
        own_threads(&work, threads);
    if (measured) add_up(&work);
    free(work.tallies);
    free(first);
    return 0;
}

/* Step every job, on `threads` threads: those of OpenMP if `gomp_parallel` is its GOMP_parallel, since others would
   have to wait for OpenMP's, which spin for a while after their last work. Returns 0, or −1 if there was no memory
   to begin with; then nothing was done. */
int roundoff_step(
    const struct kernels *kernels, const struct job *jobs, int64_t count, int threads, parallel *gomp_parallel, int bins)
{
    return take_all(kernels, jobs, NULL, count, threads, gomp_parallel, bins);
}

/* Measure steps that somebody else took, writing nothing but statistics; for the rest see `roundoff_step`. */
int roundoff_measure(
    const struct kernels *kernels, const struct job *jobs, const struct taken *taken, int64_t count, int threads,
    parallel *gomp_parallel, int bins)
{
    return take_all(kernels, jobs, taken, count, threads, gomp_parallel, bins);
}

static size_t sample_places(const char *param, const struct standing *standing, char *words)
{
    const int64_t count = standing->numel < SAMPLED ? standing->numel : SAMPLED;
    const size_t size = standing->format == 2 ? 4 : 2;
    for (int64_t i = 0; i < count; i++) memcpy(words + i * size, param + standing->places[i] * size, size);
    return (size_t)count * size;
}

/* The tensors of all turns follow each other: parameter, gradient, count of its steps, m, v, and what else is kept. */
enum { PARAM, GRAD, COUNT, STATE };

static int tensors_of(const struct standing *standing)
{
    return STATE + 2 + standing->has_lo + standing->has_v_lo + standing->has_master;
}

/* Before a step of `count` tensors: into `counts` which step of each it is, and into `changed` whether its words are
   not those that the last one left. */
void roundoff_look(const struct turn *turns, char *const *tensors, int64_t count, float *counts, char *changed)
{
    for (int64_t t = 0; t < count; t++) {
        const struct standing *standing = turns[t].standing;
        char words[4 * SAMPLED];
        counts[t] = *(const float *)tensors[COUNT] + 1.0f;
        changed[t] = standing->sealed &&
                     memcmp(words, standing->words, sample_places(tensors[PARAM], standing, words)) != 0;
        tensors += tensors_of(standing);
    }
}

static struct job job_of(
    const struct turn *turn, char *const *tensors, const struct setting *setting, double *row, double *bins)
{
    const struct standing *standing = turn->standing;
    char *const *state = tensors + STATE;
    struct job job = {
        .param = tensors[PARAM],
        .grad = tensors[GRAD],
        .row = row,
        .bins = bins,
        .numel = standing->numel,
        .format = standing->format,
        .weight = standing->weight,
        .second = standing->second,
        .has_decay = (int32_t)setting->has_decay,
        .scalars = setting->scalars,
    };
    job.m = *state++;
    job.v = *state++;
    if (standing->has_lo) job.lo = *state++;
    if (standing->has_v_lo) job.v_lo = *state++;
    if (standing->has_master) job.master = *state++;
    job.scalars.noise = (uint32_t)turn->noise;
    job.scalars.noise_high = (uint32_t)(turn->noise >> 32);
    return job;
}

/* Step tensors that stand, count the step, and keep a few of the words that it left. `rows` and `bins` have a place
   for every turn, or are NULL; for the rest and what is returned see `roundoff_step`. */
int roundoff_step_standing(
    const struct kernels *kernels, const struct turn *turns, char *const *tensors, int64_t count,
    const struct setting *settings, double *rows, double *bins, int threads, parallel *gomp_parallel)
{
    struct job *jobs = malloc((size_t)count * sizeof *jobs);
    if (jobs == NULL) return -1;
    char *const *of_turn = tensors;
    for (int64_t t = 0; t < count; t++) {
        jobs[t] = job_of(&turns[t], of_turn, &settings[turns[t].setting], rows ? rows + t * ROW : NULL,
                         bins ? bins + t * 2 * BINS : NULL);
        of_turn += tensors_of(turns[t].standing);
    }
    const int failed = roundoff_step(kernels, jobs, count, threads, gomp_parallel, bins != NULL);
    for (int64_t t = 0; t < count && !failed; t++) {
        struct standing *standing = turns[t].standing;
        *(float *)tensors[COUNT] += 1.0f;
        if (standing->sealed) sample_places(tensors[PARAM], standing, standing->words);
        tensors += tensors_of(standing);
    }
    free(jobs);
    return failed;
}
