/* SPDX-License-Identifier: Apache-2.0 */
/* The list of commands, apart from main() so that tests can have all tables of options. */
#include "cli/cli.h"

const struct egm_command *const egm_commands[] = {
    &egm_command_master,
    &egm_command_provider,
    &egm_command_put,
    &egm_command_get,
    &egm_command_exist,
    &egm_command_remove,
    &egm_command_stat,
    &egm_command_top,
    &egm_command_info,
    &egm_command_bench,
    &egm_command_help,
    &egm_command_mooncake_master,
    &egm_command_mooncake_client,
};
const size_t egm_command_count = sizeof(egm_commands) / sizeof(egm_commands[0]);
