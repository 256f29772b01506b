/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - see log.h. Keeps no state and no lock; any thread. A line must never hold a token or a
 * ZMQ routing id.
 */
#include "server/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define LINE_BYTES 512

void kvb_log(const struct kvb_log *log, enum kvb_log_level level, const char *format, ...)
{
	char line[LINE_BYTES];
	va_list args;

	if (!log->fn || level > log->level)
		return;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	log->fn(log->user, level, line);
}

void kvb_log_to_stderr(void *user, enum kvb_log_level level, const char *text)
{
	static const char *const names[] = {"error: ", "warning: ", "", "debug: "};
	char line[LINE_BYTES + 64];
	int n = snprintf(line, sizeof(line), "%s: %s%s\n", (const char *)user, names[level], text);

	if (n >= (int)sizeof(line))
		n = sizeof(line) - 1;
	/* One write per line, so that lines of several threads do not mix; a lost line is no reason
	 * to fail. */
	(void)!write(STDERR_FILENO, line, (size_t)n);
}
