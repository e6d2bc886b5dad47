/* SPDX-License-Identifier: Apache-2.0 */
/* The deliberate defects: what EGM_MUTANT(n) breaks. `sim --mutant n` runs with one of them;
 * run-mutants wants each found. */
#ifndef EGM_SIM_MUTANTS_H
#define EGM_SIM_MUTANTS_H

#define MUTANTS(M)                                                                       \
    M(1, "an expired writer's places are freed at once: no quarantine")                  \
    M(2, "a map reader does not look at the fences after its copy (stub shell)")         \
    M(3, "PUT_END seals the session's newest write, whatever generation it names")       \
    M(4, "the segment lease counts from the answer instead of the question")             \
    M(5, "a drop is acknowledged although its fence was not raised")                     \
    M(6, "a provider accepts a lease while another master's runs")                       \
    M(7, "floors are ignored")                                                           \
    M(8, "a slot is called free when its connection closes, without proof (stub shell)") \
    M(9, "PUT_END of another session is accepted")                                       \
    M(10, "a grant is used although the session was opened again meanwhile")             \
    M(11, "the second of two puts overwrites")                                           \
    M(12, "places of a removed object are reused although a read lease runs")            \
    M(13, "a removal is answered before it is recorded")                                 \
    M(14, "removals that were not acknowledged are forgotten when a provider re-mounts") \
    M(15, "a recovering mount allocates at once")                                        \
    M(16, "a session that comes back settles writes that it still lists")                \
    M(17, "a new master takes the provider's term instead of the next one")              \
    M(18, "a drop is acknowledged while a transfer on it runs")                          \
    M(19, "a new term is acknowledged while transfers of the old one run")               \
    M(20, "a revoked write is reported as stopped while it is being copied")             \
    M(21, "a provider that comes back with another epoch is taken for the same life")    \
    M(22, "quarantine ends by time")                                                     \
    M(23, "a put that was given up by its timeout is freed although its writer lives")   \
    M(24, "who is known is not asked again what it writes when a provider joins")        \
    M(25, "one lost provider lets a removal be answered that another has not recorded")  \
    M(26, "a new term does not raise the floor of the fences")                           \
    M(27, "any SESSION counts, overtaken or old")                                        \
    M(28, "what a PING_REPLY grants counts from the answer instead of the question")     \
    M(29, "a PING_REPLY renews reads that it does not name")                             \
    M(30, "the renewal of a read lease is told but not kept")                            \
    M(31, "a read lease reaches beyond its providers' leases")                           \
    M(32, "a SESSION that may be older than a grant counts without the challenge")       \
    M(33, "a SESSION that may be older than a provider's coming counts without it")      \
    M(38, "holds keep a full pool from evicting")                                        \
    M(39, "what is in use in main hides small from eviction")                            \
    M(40, "an object is evicted for the sake of its first replica's mount only")         \
    M(41, "a put is refused although removals are on their way")                         \
    M(42, "what lies on a segment whose lease ran out is present")                       \
    M(43, "what one session suspects is absent for all")                                 \
    M(44, "a read lease ends after a quarter of its time")                               \
    M(45, "a segment that joins counts as none")

#endif
