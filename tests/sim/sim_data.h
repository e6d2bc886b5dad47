/* SPDX-License-Identifier: Apache-2.0 */
/* What goes over a simulated data connection behind a frame header: the real READ and WRITE carry
 * raw bytes, which cells replace here. */
#ifndef EGM_SIM_DATA_H
#define EGM_SIM_DATA_H

#include "sim.h"

struct data_message {
    bool is_write;
    int status; /* replies */
    uint32_t segment, extent_count, cell_count;
    uint64_t generation, write_id, length, request;
    struct egm_extent extents[EGM_MAX_EXTENTS];
    uint64_t cells[MOST_CELLS]; /* reply to a read; sent up to cell_count */
};

#endif
