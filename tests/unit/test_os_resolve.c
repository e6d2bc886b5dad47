/* SPDX-License-Identifier: Apache-2.0 */
/* Name look-ups against a resolver of this file's own, which may take its time. */
#include "os/clock.h"
#include "os/host.h"
#include "os/net.h"
#include "os/resolve.h"
#include "os/wait.h"
#include "test.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS EGM_NS_PER_MS
#define SLOW_MS 700u

static _Atomic unsigned questions; /* about names */

/* Takes the place of libc's. Every name that it knows is 127.0.0.1. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **ret)
{
    struct in_addr v4;

    (void)port;
    if (inet_pton(AF_INET, host, &v4) != 1) {
        if (hints->ai_flags & AI_NUMERICHOST) {
            return EAI_NONAME;
        }
        questions++;
        if (strncmp(host, "slow", 4) == 0) {
            egm_sleep_ns(SLOW_MS * MS);
        }
        if (strcmp(host, "stuck") == 0) {
            egm_sleep_ns(2 * SLOW_MS * MS);
        }
        if (strcmp(host, "absent") == 0) {
            return EAI_NONAME;
        }
        v4.s_addr = htonl(INADDR_LOOPBACK);
    }
    struct {
        struct addrinfo info;
        struct sockaddr_in sa;
    } *one = calloc(1, sizeof(*one));
    one->sa.sin_family = AF_INET;
    one->sa.sin_addr = v4;
    one->info = (struct addrinfo){.ai_family = AF_INET,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_addrlen = sizeof(one->sa),
                                  .ai_addr = (struct sockaddr *)&one->sa};
    *ret = &one->info;
    return 0;
}

void freeaddrinfo(struct addrinfo *all)
{
    free(all);
}

static uint64_t in_ms(uint64_t ms)
{
    return egm_clock_ns() + ms * MS;
}

static void check_took(uint64_t since_ns, uint64_t least_ms)
{
    uint64_t took_ms = (egm_clock_ns() - since_ns) / MS;

    ck_assert_uint_ge(took_ms, least_ms);
    ck_assert_uint_le(took_ms, least_ms + 150);
}

/* The helper threads have an end too: the process must not go before them (LSan looks). */
static void let_slow_ones_end(void)
{
    egm_sleep_ns((SLOW_MS + 50) * MS);
}

START_TEST(slow_resolver_costs_the_deadline_and_its_answer_is_kept)
{
    struct egm_resolved found;
    int fd;
    uint64_t since = egm_clock_ns();

    ck_assert_int_eq(egm_net_connect("slow:1", in_ms(150), &fd, NULL), EGM_E_TIMEOUT);
    check_took(since, 150);
    since = egm_clock_ns();
    ck_assert_int_eq(egm_net_connect("slow:1", in_ms(5000), &fd, NULL), -ECONNREFUSED);
    check_took(since, SLOW_MS - 150 - 20);
    ck_assert_uint_eq(questions, 1); /* the first one's look-up served the second */
    ck_assert_int_eq(egm_resolve("slow", 80, in_ms(0), &found, NULL), 0);
    ck_assert_uint_eq(found.count, 1);
    ck_assert_int_eq(((struct sockaddr_in *)&found.all[0].at)->sin_port, htons(80));
    ck_assert_uint_eq(questions, 1);
}
END_TEST

START_TEST(local_host_check_is_bounded)
{
    ck_assert(egm_host_is_local("quick"));
    ck_assert(!egm_host_is_local("absent"));
    uint64_t since = egm_clock_ns();
    ck_assert(!egm_host_is_local("stuck"));
    check_took(since, 1000);
    let_slow_ones_end();
}
END_TEST

START_TEST(numeric_addresses_never_meet_the_resolver)
{
    struct egm_resolved found;
    int fd;

    ck_assert_int_eq(egm_net_connect("127.0.0.1:1", in_ms(1000), &fd, NULL), -ECONNREFUSED);
    ck_assert_int_eq(egm_resolve("10.1.2.3", 7, 1, &found, NULL), 0);
    ck_assert_uint_eq(questions, 0);
}
END_TEST

START_TEST(missing_name_says_which)
{
    struct egm_detail why = {0};
    struct egm_resolved found;

    ck_assert_int_eq(egm_resolve("absent", 7, in_ms(1000), &found, &why), -EHOSTUNREACH);
    ck_assert_ptr_nonnull(strstr(why.text, "absent"));
}
END_TEST

START_TEST(hanging_look_ups_are_bounded_in_number)
{
    struct egm_resolved found;
    char host[16];

    for (int i = 0; i < 16; i++) {
        snprintf(host, sizeof(host), "slow%d", i);
        ck_assert_int_eq(egm_resolve(host, 1, in_ms(1), &found, NULL), EGM_E_TIMEOUT);
    }
    ck_assert_int_eq(egm_resolve("slow-one-more", 1, in_ms(1), &found, NULL), -EHOSTUNREACH);
    let_slow_ones_end();
    ck_assert_int_eq(egm_resolve("slow-one-more", 1, in_ms(1000), &found, NULL), 0);
}
END_TEST

static void *ask_slow(void *arg)
{
    static _Thread_local struct egm_resolved found;

    *(int *)arg = egm_resolve("slow", 1, in_ms(3000), &found, NULL);
    return NULL;
}

START_TEST(all_who_ask_share_a_look_up)
{
    pthread_t threads[8];
    int results[8];

    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, ask_slow, &results[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(results[i], 0);
    }
    ck_assert_uint_eq(questions, 1);
}
END_TEST

START_TEST(child_of_fork_asks_anew)
{
#ifdef __SANITIZE_THREAD__
    return; /* TSan knows no threads in a child of a process with threads */
#endif
    struct egm_resolved found;
    int status;

    ck_assert_int_eq(egm_resolve("slow", 1, in_ms(20), &found, NULL), EGM_E_TIMEOUT);
    pid_t child = fork();
    if (child == 0) {
        _exit(egm_resolve("slow", 1, in_ms(3000), &found, NULL) == 0 ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    let_slow_ones_end();
}
END_TEST

EGM_TEST_MAIN("os_resolve", slow_resolver_costs_the_deadline_and_its_answer_is_kept,
              local_host_check_is_bounded, numeric_addresses_never_meet_the_resolver,
              missing_name_says_which, hanging_look_ups_are_bounded_in_number,
              all_who_ask_share_a_look_up, child_of_fork_asks_anew)
