/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arguments.h - kvbelld's command line, apart from what the program does with it.
 */
#ifndef KVB_SERVER_ARGUMENTS_H
#define KVB_SERVER_ARGUMENTS_H

#include <argp.h>

#include "kvbell/server.h"

/* Strings point into the arguments that were parsed. */
struct kvb_arguments {
	struct kvb_server_options options;
	int ready_fd; /* -1: none was given */
};

void kvb_arguments_init(struct kvb_arguments *arguments);

/* Its input is a struct kvb_arguments. */
extern const struct argp kvb_arguments_argp;

#endif /* KVB_SERVER_ARGUMENTS_H */
