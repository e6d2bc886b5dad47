/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive doubly linked list.
 *
 * A list is a ring of struct egm_link with one of them, the head, in no item. Items embed a link
 * and are found from it with egm_container_of. The list owns nothing. A link that is in no list
 * points at itself, so egm_list_remove is safe on it and egm_link_is_listed can be asked; such
 * links need egm_list_init before first use, like a head.
 */
#ifndef EGM_BASE_LIST_H
#define EGM_BASE_LIST_H

#include "base/assert.h"
#include "base/checked.h"

#include <stdbool.h>
#include <stddef.h>

struct egm_link {
    struct egm_link *prev;
    struct egm_link *next;
};

/* Makes `link` an empty list head, or an item's link that is in no list. */
static inline void egm_list_init(struct egm_link *link)
{
    link->prev = link;
    link->next = link;
}

static inline bool egm_list_is_empty(const struct egm_link *head)
{
    return head->next == head;
}

/* True while the item's link is in a list. */
static inline bool egm_link_is_listed(const struct egm_link *link)
{
    return link->next != link;
}

/* Puts `link`, which is in no list, between two neighbours. */
static inline void egm_list_insert_between(struct egm_link *link, struct egm_link *prev,
                                           struct egm_link *next)
{
    link->prev = prev;
    link->next = next;
    prev->next = link;
    next->prev = link;
}

static inline void egm_list_push_back(struct egm_link *head, struct egm_link *link)
{
    egm_list_insert_between(link, head->prev, head);
}

static inline void egm_list_push_front(struct egm_link *head, struct egm_link *link)
{
    egm_list_insert_between(link, head, head->next);
}

/* Takes the link out of its list, if it is in one. */
static inline void egm_list_remove(struct egm_link *link)
{
    EGM_ASSERT(link->prev->next == link && link->next->prev == link);
    link->prev->next = link->next;
    link->next->prev = link->prev;
    egm_list_init(link);
}

/* First link, left in the list, or NULL. */
static inline struct egm_link *egm_list_first(const struct egm_link *head)
{
    return egm_list_is_empty(head) ? NULL : head->next;
}

/* Takes out the first link, or NULL. */
static inline struct egm_link *egm_list_pop_front(struct egm_link *head)
{
    struct egm_link *link = egm_list_first(head);

    if (link) {
        egm_list_remove(link);
    }
    return link;
}

/* `link` runs over the list; the body must not remove it. */
#define EGM_LIST_FOR_EACH(link, head) \
    for (struct egm_link *link = (head)->next; link != (head); link = link->next)

/* As above, but the body may remove `link` (and only it). `link_next` is the macro's own variable.
 */
#define EGM_LIST_FOR_EACH_SAFE(link, link_next, head)                                   \
    for (struct egm_link *link = (head)->next, *link_next = link->next; link != (head); \
         link = link_next, link_next = link->next)

#endif
