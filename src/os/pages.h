/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of memory that the kernel is asked to back with huge pages: what base/pieces cuts up.
 *
 * Transparent huge pages, not hugetlbfs: nothing has to be reserved, and where they are off
 * (/sys/kernel/mm/transparent_hugepage/enabled = never) or memory is too scattered, small pages
 * come instead and nothing fails.
 *
 * The first touch of a huge page clears 2 MiB: 0.1 to 0.3 ms, and 8 ms in a VM whose host has to
 * find the memory first. So that no turn of a loop pays that, a thread touches a few blocks ahead;
 * get takes one of them, or maps a cold one when they are used up.
 */
#ifndef EGM_OS_PAGES_H
#define EGM_OS_PAGES_H

#include "base/pieces.h"

#include "egmstore/errors.h"

struct egm_pages;

/* Starts the thread. Blocks of EGM_BLOCK_SIZE only. 0, -ENOMEM or what starting a thread fails
 * with. */
EGM_MUST_CHECK int egm_pages_create(struct egm_pages **ret_pages);
/* NULL is fine. Blocks that are still out stay mapped. */
void egm_pages_destroy(struct egm_pages *p);

/* Valid until destroy. Its functions are @threadsafe. */
struct egm_block_source egm_pages_source(struct egm_pages *p);

#endif
