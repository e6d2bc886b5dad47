/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore info: what this build and this host offer. Asks no other process. */
#include "base/assert.h"

#include "cli/cli.h"
#include "mover/checksum.h"
#include "mover/copy.h"
#include "mover/copy_team.h"
#include "os/clock.h"
#include "os/host.h"
#include "wire/messages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZER "address"
#elif defined(__SANITIZE_THREAD__)
#define SANITIZER "thread"
#else
#define SANITIZER "none"
#endif

static const struct egm_option rows[] = {EGM_ROW_JSON};

#define MAX_FACTS 24

struct fact {
    const char *name;
    char value[320];
};

struct facts {
    struct fact items[MAX_FACTS];
    size_t count;
};

__attribute__((format(printf, 3, 4))) static void add(struct facts *facts, const char *name,
                                                      const char *fmt, ...)
{
    va_list ap;

    EGM_ASSERT(facts->count < MAX_FACTS);
    struct fact *fact = &facts->items[facts->count++];
    fact->name = name;
    va_start(ap, fmt);
    egm_ignore(vsnprintf(fact->value, sizeof(fact->value), fmt, ap), "cut is fine");
    va_end(ap);
}

static bool is_off(const char *name)
{
    const char *text = getenv(name);
    bool value;

    return text && egm_parse_bool(text, &value) == 0 && !value;
}

static void add_build(struct facts *facts)
{
    add(facts, "version", "%s", EGM_VERSION);
    add(facts, "protocol", "%u", EGM_PROTOCOL_VERSION);
    add(facts, "compiler", "%s", __VERSION__);
#if defined(__x86_64__)
    add(facts, "architecture", "x86-64");
#elif defined(__aarch64__)
    add(facts, "architecture", "aarch64");
#else
    add(facts, "architecture", "other");
#endif
    add(facts, "debug_checks", "%s", EGM_DEBUG ? "on" : "off");
    add(facts, "sanitizer", "%s", SANITIZER);
}

static void add_host(struct facts *facts)
{
    char folder[256];
    struct egm_detail detail = {0};

    add(facts, "host_id", "%016" PRIx64, egm_host_id());
    add(facts, "cpus", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    add(facts, "page_bytes", "%ld", sysconf(_SC_PAGESIZE));
    if (egm_runtime_dir(folder, sizeof(folder), &detail) < 0) {
        add(facts, "runtime_folder", "unusable: %s", detail.text);
    } else {
        add(facts, "runtime_folder", "%s", folder);
    }
    const char *cluster = getenv("EGMSTORE_CLUSTER");
    add(facts, "cluster", "%s", cluster && cluster[0] ? cluster : "egmstore");
}

static void add_copy_threads(struct facts *facts)
{
    struct egm_copy_team_choice choice;

    if (egm_copy_team_configure() < 0) {
        add(facts, "copy_threads", "EGMSTORE_COPY_THREADS is not usable here, 1 is used");
        return;
    }
    egm_copy_team_measure(egm_clock_ns() + 2 * EGM_NS_PER_S);
    egm_copy_team_read(&choice);
    if (choice.thread_count == 0) {
        add(facts, "copy_threads", "1: the host is too busy to measure more");
    } else if (choice.is_given) {
        add(facts, "copy_threads", "%u (EGMSTORE_COPY_THREADS)", choice.thread_count);
    } else if (choice.tried_count == 0) {
        add(facts, "copy_threads", "1: there is one CPU for us");
    } else {
        add(facts, "copy_threads", "%u: %u have %.2f times the speed of %u", choice.thread_count,
            choice.tried_count, choice.gain, choice.tried_count / 2);
    }
}

static void add_data_path(struct facts *facts)
{
    add(facts, "memory_kinds", "shm");
    add(facts, "mover_map", "%s",
        is_off("EGMSTORE_MAP")      ? "off (EGMSTORE_MAP)"
        : is_off("MC_STORE_MEMCPY") ? "off (MC_STORE_MEMCPY)"
                                    : "on: providers of this host, shared memory");
    add(facts, "mover_tcp", "on: providers with a data port");
    if (egm_copy_probe() < 0) {
        add(facts, "copy_policy", "EGMSTORE_COPY is not usable here, plain is used");
    } else {
        add(facts, "copy_policy", "put %s, get %s", egm_copy_policy_name(EGM_COPY_IN),
            egm_copy_policy_name(EGM_COPY_OUT));
    }
    add_copy_threads(facts);
    add(facts, "checksum", "xxh3-64, %s", egm_checksum_variant_name(egm_checksum_variant_at(0)));
}

static int run(struct egm_cli *cli)
{
    struct facts facts = {.count = 0};
    bool is_json = egm_options_bool(&cli->options, "json");
    struct egm_buf out;

    add_build(&facts);
    add_host(&facts);
    add_data_path(&facts);
    egm_buf_init(&out, 65536);
    for (size_t i = 0; i < facts.count; i++) {
        if (is_json) {
            egm_buf_printf(&out, "%s\"%s\":", i > 0 ? "," : "{", facts.items[i].name);
            egm_cli_json_text(&out, facts.items[i].value);
        } else {
            egm_buf_printf(&out, "%-16s %s\n", facts.items[i].name, facts.items[i].value);
        }
    }
    egm_buf_printf(&out, is_json ? "}\n" : "");
    int code = egm_cli_print(cli, &out);
    egm_buf_release(&out);
    return code;
}

const struct egm_command egm_command_info = {
    .name = "info",
    .summary = "show version, build, host and data paths",
    .usage = "",
    .examples = "  egmstore info\n"
                "  egmstore info --json\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .run = run,
};
