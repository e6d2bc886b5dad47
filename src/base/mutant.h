/* SPDX-License-Identifier: Apache-2.0 */
/* Deliberate defects, so that the simulator can prove that it would notice them (docs/testing.md).
 *
 * EGM_MUTANT(n) stands in a condition; n is the number of a defect listed in tests/sim/mutants.h.
 * Every build but the simulator's sees a constant 0, and the compiler removes it. */
#ifndef EGM_BASE_MUTANT_H
#define EGM_BASE_MUTANT_H

#ifdef EGM_SIM
extern int egm_sim_mutant;
#define EGM_MUTANT(n) (egm_sim_mutant == (n))
#else
#define EGM_MUTANT(n) 0
#endif

#endif
