/* SPDX-License-Identifier: Apache-2.0 */
#include "os/pages.h"

#include "base/alloc.h"
#include "base/assert.h"

#include "os/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Blocks touched ahead: 4 MiB, enough for 12,000 puts while the thread gets the next one. */
#define READY_MOST 2

struct egm_pages {
    pthread_t thread;
    pthread_mutex_t lock; /* for all below */
    pthread_cond_t taken; /* a ready block was taken, or it is to end */
    void *ready[READY_MOST];
    uint32_t ready_count;
    bool is_ending;
};

static void *map(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

/* Maps twice as much and gives back what lies before and behind the aligned part. */
static void *map_aligned(void)
{
    uint8_t *at = map(2 * EGM_BLOCK_SIZE);
    size_t before;

    if (!at) {
        return NULL;
    }
    before = (EGM_BLOCK_SIZE - (uintptr_t)at % EGM_BLOCK_SIZE) % EGM_BLOCK_SIZE;
    if (before > 0) {
        munmap(at, before);
    }
    munmap(at + before + EGM_BLOCK_SIZE, EGM_BLOCK_SIZE - before);
    return at + before;
}

static void *map_block(void)
{
    /* the kernel places a mapping next to the one before: mostly it is aligned like that one */
    void *block = map(EGM_BLOCK_SIZE);

    if (block && (uintptr_t)block % EGM_BLOCK_SIZE != 0) {
        munmap(block, EGM_BLOCK_SIZE);
        block = map_aligned();
    }
    if (block) {
        egm_ignore(madvise(block, EGM_BLOCK_SIZE, MADV_HUGEPAGE), "small pages do, only slower");
    }
    return block;
}

static void *keep_ready(void *arg)
{
    struct egm_pages *p = arg;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->is_ending && p->ready_count == READY_MOST) {
            pthread_cond_wait(&p->taken, &p->lock);
        }
        if (p->is_ending) {
            break;
        }
        pthread_mutex_unlock(&p->lock);
        void *block = map_block();
        if (block) {
            egm_ignore(madvise(block, EGM_BLOCK_SIZE, MADV_POPULATE_WRITE),
                       "it is touched on use then");
        }
        pthread_mutex_lock(&p->lock);
        if (block) {
            p->ready[p->ready_count++] = block;
        } else if (!p->is_ending) {
            pthread_cond_wait(&p->taken, &p->lock); /* no memory: tried again with the next get */
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int egm_pages_create(struct egm_pages **ret_pages)
{
    struct egm_pages *p = egm_calloc(1, sizeof(*p));
    int r;

    if (!p) {
        return -ENOMEM;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->taken, NULL);
    r = egm_thread_start(&p->thread, "egm-pages", keep_ready, p);
    if (r < 0) {
        egm_free(p);
        return r;
    }
    *ret_pages = p;
    return 0;
}

void egm_pages_destroy(struct egm_pages *p)
{
    if (!p) {
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->is_ending = true;
    pthread_cond_signal(&p->taken);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    while (p->ready_count > 0) {
        munmap(p->ready[--p->ready_count], EGM_BLOCK_SIZE);
    }
    pthread_cond_destroy(&p->taken);
    pthread_mutex_destroy(&p->lock);
    egm_free(p);
}

static void *get_block(void *arg, size_t size)
{
    struct egm_pages *p = arg;
    void *block = NULL;

    EGM_ASSERT(size == EGM_BLOCK_SIZE);
    pthread_mutex_lock(&p->lock);
    if (p->ready_count > 0) {
        block = p->ready[--p->ready_count];
    }
    pthread_cond_signal(&p->taken);
    pthread_mutex_unlock(&p->lock);
    return block ? block : map_block();
}

static void put_block(void *arg, void *block, size_t size)
{
    (void)arg;
    munmap(block, size);
}

struct egm_block_source egm_pages_source(struct egm_pages *p)
{
    return (struct egm_block_source){.get = get_block, .put = put_block, .arg = p};
}
