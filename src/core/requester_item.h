/* SPDX-License-Identifier: Apache-2.0 */
/* One object of a batch call, as the operations of requester.h carry it. Apart from those, because
 * the public API's files fill it and know no wire records. */
#ifndef EGM_CORE_REQUESTER_ITEM_H
#define EGM_CORE_REQUESTER_ITEM_H

#include "egmstore/types.h"

#include <stddef.h>
#include <stdint.h>

/* No answer yet. */
#define EGM_RESULT_PENDING INT64_MAX

enum egm_item_state {
    EGM_ITEM_WAITING = 0, /* to be asked for */
    EGM_ITEM_ASKED,       /* in the window */
    EGM_ITEM_GRANTED,     /* in the window, with places to copy to or from */
    EGM_ITEM_RETRY,       /* to be asked for again, in the next pass */
    EGM_ITEM_DONE,        /* result says how */
};

struct egm_op_item {
    struct egm_key key;      /* borrowed */
    const struct iovec *iov; /* borrowed; its sizes add up to `size` */
    size_t iov_count;
    uint64_t size;     /* put: bytes of the object; get: room for it */
    const char *group; /* put; borrowed; NULL: none */
    int64_t result;    /* out; EGM_RESULT_PENDING until state DONE */

    /* the operation's own */
    uint64_t generation;
    uint64_t checksum;
    uint64_t object_size; /* get: as the master says */
    uint32_t first_place; /* in the window's places */
    uint8_t place_count;
    uint8_t place_tried; /* get: bit per place */
    uint8_t attempt_count;
    uint8_t state;   /* enum egm_item_state */
    int copy_status; /* put: the first failure of its places; get: the last one */
};

/* An item to be asked for. */
static inline void egm_op_item_init(struct egm_op_item *item, struct egm_key key,
                                    const struct iovec *iov, size_t iov_count, uint64_t size)
{
    *item = (struct egm_op_item){
        .key = key, .iov = iov, .iov_count = iov_count, .size = size, .result = EGM_RESULT_PENDING};
}

/* Decides an item: it is not asked for (any more). */
static inline void egm_op_item_finish(struct egm_op_item *item, int64_t result)
{
    item->result = result;
    item->state = EGM_ITEM_DONE;
}

#endif
