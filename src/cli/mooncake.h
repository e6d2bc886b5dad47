/* SPDX-License-Identifier: Apache-2.0 */
/* What the two commands that take Mooncake's flags share. */
#ifndef EGM_CLI_MOONCAKE_H
#define EGM_CLI_MOONCAKE_H

#include "cli/cli.h"

/* Rows of this group are parsed as strictly as the others, and have no effect. */
#define EGM_MOONCAKE_IGNORED "Accepted without effect"

/* One row of the flags that have no effect. */
#define EGM_IGNORED(option, option_type, text, word)                                    \
    {                                                                                   \
        .name = option, .type = option_type, .default_text = text, .placeholder = word, \
        .help = "accepted for compatibility", .group = EGM_MOONCAKE_IGNORED             \
    }
#define EGM_IGNORED_BOOL(option, text) EGM_IGNORED(option, EGM_OPTION_BOOL, text, NULL)
#define EGM_IGNORED_U64(option, text) EGM_IGNORED(option, EGM_OPTION_U64, text, "number")
#define EGM_IGNORED_TEXT(option, text) EGM_IGNORED(option, EGM_OPTION_STRING, text, "text")
#define EGM_IGNORED_RATIO(option, text) EGM_IGNORED(option, EGM_OPTION_DOUBLE, text, "ratio")

/* Flags that every program of gflags and glog has. */
#define EGM_MOONCAKE_COMMON_ROWS                                                                   \
    {.name = "version", .type = EGM_OPTION_BOOL, .help = "print the version", .group = "Program"}, \
        {.name = "config-path",                                                                    \
         .placeholder = "file",                                                                    \
         .type = EGM_OPTION_STRING,                                                                \
         .help = "JSON object with the same names as the flags; the command line wins",            \
         .group = "Program"},                                                                      \
        {.name = "v",                                                                              \
         .placeholder = "level",                                                                   \
         .type = EGM_OPTION_U64,                                                                   \
         .default_text = "0",                                                                      \
         .max = 100,                                                                               \
         .help = "verbosity: 1 logs objects, 2 logs operations",                                   \
         .group = "Program"},                                                                      \
    {                                                                                              \
        .name = "minloglevel", .placeholder = "level", .type = EGM_OPTION_U64,                     \
        .default_text = "0", .max = 3,                                                             \
        .help = "least severe lines: 0 info, 1 warnings, 2 and 3 errors", .group = "Program"       \
    }

#define EGM_MOONCAKE_GLOG_ROWS                                                                   \
    EGM_IGNORED_BOOL("logtostderr", "true"), EGM_IGNORED_BOOL("alsologtostderr", "false"),       \
        EGM_IGNORED_BOOL("colorlogtostderr", "false"), EGM_IGNORED_BOOL("logtostdout", "false"), \
        EGM_IGNORED_BOOL("log-prefix", "true"), EGM_IGNORED_BOOL("log-utc-time", "false"),       \
        EGM_IGNORED_BOOL("stop-logging-if-full-disk", "false"),                                  \
        EGM_IGNORED_BOOL("timestamp-in-logfile-name", "true"), EGM_IGNORED_TEXT("log-dir", ""),  \
        EGM_IGNORED_TEXT("log-link", ""), EGM_IGNORED_TEXT("vmodule", ""),                       \
        EGM_IGNORED_TEXT("log-backtrace-at", ""), EGM_IGNORED_U64("logbufsecs", "30"),           \
        EGM_IGNORED("logbuflevel", EGM_OPTION_STRING, "0", "level"),                             \
        EGM_IGNORED_U64("max-log-size", "1800"), EGM_IGNORED_U64("stderrthreshold", "2"),        \
        EGM_IGNORED_U64("logfile-mode", "436")

/* --version, the config file, the log level, and one line that names the given flags without
 * effect. Returns true when the command is to go on; else *ret_code is the exit code. */
bool egm_mooncake_begin(struct egm_cli *cli, int *ret_code);

/* True if the user gave it, in whatever way. */
bool egm_mooncake_is_given(const struct egm_cli *cli, const char *name);

#endif
