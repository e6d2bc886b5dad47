/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/stat_view.h"

#include "base/assert.h"

#include <stdio.h>

double egm_stat_number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

void egm_stat_view_bytes(char *ret_text, size_t size, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;

    while (bytes >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1024;
        unit++;
    }
    egm_ignore(snprintf(ret_text, size, unit > 0 ? "%.1f %s" : "%.0f %s", bytes, units[unit]),
               "fits");
}

void egm_stat_view_totals(struct egm_buf *out, const json_t *root)
{
    double capacity = egm_stat_number(root, "capacity_bytes");
    double used = egm_stat_number(root, "used_bytes");
    char used_text[32];
    char capacity_text[32];
    char quarantined[32];
    char evicted[32];

    egm_stat_view_bytes(used_text, sizeof(used_text), used);
    egm_stat_view_bytes(capacity_text, sizeof(capacity_text), capacity);
    egm_stat_view_bytes(quarantined, sizeof(quarantined),
                        egm_stat_number(root, "quarantined_bytes"));
    egm_stat_view_bytes(evicted, sizeof(evicted), egm_stat_number(root, "evicted_bytes"));
    egm_buf_printf(out, "master    instance %s, term %.0f, %.0f own stalls\n",
                   text_of(root, "instance"), egm_stat_number(root, "term"),
                   egm_stat_number(root, "stalls"));
    egm_buf_printf(out, "objects   %.0f\n", egm_stat_number(root, "objects"));
    egm_buf_printf(out, "memory    %s of %s used (%.1f %%), %s quarantined\n", used_text,
                   capacity_text, capacity > 0 ? used * 100 / capacity : 0, quarantined);
    egm_buf_printf(out, "gets      %.0f hits, %.0f misses\n", egm_stat_number(root, "get_hits"),
                   egm_stat_number(root, "get_misses"));
    egm_buf_printf(out, "puts      %.0f, %.0f failed, %.0f without space\n",
                   egm_stat_number(root, "puts"), egm_stat_number(root, "put_failures"),
                   egm_stat_number(root, "no_space"));
    egm_buf_printf(out, "evicted   %.0f objects, %s\n", egm_stat_number(root, "evicted_objects"),
                   evicted);
}

static void view_mounts(struct egm_buf *out, const json_t *mounts)
{
    size_t i;
    json_t *mount;

    egm_buf_printf(out, "\n%-32s %3s %-12s %10s %10s %10s %9s  %s\n", "SEGMENT OF", "NO", "STATE",
                   "SIZE", "FREE", "QUARANTINE", "IMPORTERS", "DATA ADDRESS");
    json_array_foreach(mounts, i, mount)
    {
        char size[32];
        char free_text[32];
        char quarantined[32];
        egm_stat_view_bytes(size, sizeof(size), egm_stat_number(mount, "size_bytes"));
        egm_stat_view_bytes(free_text, sizeof(free_text), egm_stat_number(mount, "free_bytes"));
        egm_stat_view_bytes(quarantined, sizeof(quarantined),
                            egm_stat_number(mount, "quarantined_bytes"));
        egm_buf_printf(out, "%-32s %3.0f %-12s %10s %10s %10s %9.0f  %s\n", text_of(mount, "name"),
                       egm_stat_number(mount, "segment"), text_of(mount, "state"), size, free_text,
                       quarantined, egm_stat_number(mount, "importers"),
                       text_of(mount, "data_address"));
    }
    if (json_array_size(mounts) == 0) {
        egm_buf_printf(out, "(none: start a provider)\n");
    }
}

static void view_sessions(struct egm_buf *out, const json_t *sessions)
{
    size_t i;
    json_t *session;

    egm_buf_printf(out, "\n%-16s %8s %-6s %6s  %s\n", "SESSION", "PID", "STATE", "SLOTS", "NAME");
    json_array_foreach(sessions, i, session)
    {
        egm_buf_printf(out, "%-16s %8.0f %-6s %6.0f  %s\n", text_of(session, "session"),
                       egm_stat_number(session, "pid"),
                       json_is_true(json_object_get(session, "live")) ? "live" : "gone",
                       egm_stat_number(session, "importer_slots"), text_of(session, "name"));
    }
    if (json_array_size(sessions) == 0) {
        egm_buf_printf(out, "(none)\n");
    }
}

void egm_stat_view_tables(struct egm_buf *out, const json_t *root, bool has_sessions)
{
    view_mounts(out, json_object_get(root, "mounts"));
    if (has_sessions) {
        view_sessions(out, json_object_get(root, "sessions"));
    }
}
