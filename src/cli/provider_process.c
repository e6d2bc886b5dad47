/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A provider in the foreground.
 *
 * Signals. While the pool is being populated nothing depends on us: SIGTERM ends the process at
 * once. Later the first one starts the drain, and a second one leaves at once, whatever still holds
 * memory. The handler runs on whatever thread takes the signal and only writes a byte to a pipe,
 * which the main thread waits on.
 */
#include "cli/provider_process.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WATCH_MS 500

/* Written by the handler, so they cannot hang off a struct. relaxed: they order nothing but
 * themselves. */
static _Atomic int stop_count;
static _Atomic bool is_serving;
static int stop_pipe[2] = {-1, -1};

static void on_stop(int number)
{
    int saved = errno;

    if (atomic_fetch_add_explicit(&stop_count, 1, memory_order_relaxed) > 0 ||
        !atomic_load_explicit(&is_serving, memory_order_relaxed)) {
        _exit(128 + number);
    }
    ssize_t n = write(stop_pipe[1], "s", 1);
    (void)n;
    errno = saved;
}

void egm_provider_process_signals(void)
{
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESTART};

    if (pipe2(stop_pipe, O_CLOEXEC | O_NONBLOCK) < 0) {
        egm_warn("no pipe for signals err=\"%s\": SIGTERM will not drain, continuing",
                 strerror(errno));
        return;
    }
    sigemptyset(&action.sa_mask);
    egm_ignore(sigaction(SIGTERM, &action, NULL), "known signals");
    egm_ignore(sigaction(SIGINT, &action, NULL), "known signals");
}

struct progress {
    time_t next;
    uint64_t total;
};

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
    struct progress *progress = arg;
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec < progress->next && done < total) {
        return;
    }
    progress->next = now.tv_sec + 1;
    egm_info("populating memory done_mib=%" PRIu64 " total_mib=%" PRIu64 " percent=%u", done >> 20,
             total >> 20, total ? (unsigned)(done * 100 / total) : 100u);
}

static void print_ready(const struct egm_provider_process *process, struct egm_provider *provider)
{
    struct egm_buf out;

    egm_buf_init(&out, 4096);
    if (process->is_json) {
        egm_buf_printf(&out, "{\"state\":\"ready\",\"name\":");
        egm_cli_json_text(&out, egm_provider_hostname(provider));
        egm_buf_printf(&out, ",\"capacity_bytes\":%" PRIu64 "}\n", egm_provider_capacity(provider));
    } else {
        egm_buf_printf(&out, "ready name=%s capacity_bytes=%" PRIu64 " master=%s\n",
                       egm_provider_hostname(provider), egm_provider_capacity(provider),
                       process->options.master);
    }
    fputs(egm_buf_str(&out), stdout);
    fflush(stdout);
    egm_buf_release(&out);
}

/* Until a signal, or until the provider has gone by itself (drained from outside). True: it has
 * gone. */
static bool wait_for_end(struct egm_provider *provider)
{
    struct pollfd p = {.fd = stop_pipe[0], .events = POLLIN};

    for (;;) {
        int n = poll(&p, 1, WATCH_MS);
        if (n > 0) {
            return false;
        }
        if (egm_provider_state(provider) == EGM_PROVIDER_GONE) {
            return true;
        }
    }
}

static int leave(const struct egm_cli *cli, struct egm_provider_process *process,
                 struct egm_provider *provider)
{
    struct egm_detail detail = {0};
    int code = EGM_EXIT_OK;

    egm_info("provider draining name=%s bound_ms=%u", egm_provider_hostname(provider),
             process->drain_ms);
    if (egm_provider_drain(provider, process->drain_ms, &detail) < 0) {
        code = egm_cli_fail(cli, "left without being drained: %s", detail.text);
    }
    egm_provider_close(provider);
    if (code == EGM_EXIT_OK) {
        egm_info("provider drained");
    }
    return code;
}

int egm_provider_process_run(const struct egm_cli *cli, struct egm_provider_process *process)
{
    struct egm_provider *provider;
    struct egm_detail detail = {0};
    struct progress progress = {0};

    process->options.progress = show_progress;
    process->options.progress_arg = &progress;
    if (egm_provider_open(&process->options, &provider, &detail) < 0) {
        return egm_cli_fail(cli, "%s", detail.text);
    }
    atomic_store_explicit(&is_serving, true, memory_order_relaxed);
    int code = process->started ? process->started(process->arg, provider) : EGM_EXIT_OK;
    if (code != EGM_EXIT_OK) {
        egm_ignore(leave(cli, process, provider), "the first failure is the one to tell");
        return code;
    }
    print_ready(process, provider);
    bool is_gone = wait_for_end(provider);
    if (process->ending) {
        process->ending(process->arg);
    }
    if (is_gone) {
        egm_provider_close(provider);
        egm_info("provider was drained from outside");
        return EGM_EXIT_OK;
    }
    return leave(cli, process, provider);
}
