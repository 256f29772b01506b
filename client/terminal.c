/* SPDX-License-Identifier: Apache-2.0 */
/*
 * terminal.c - see terminal.h.
 *
 * Owns the last line of stderr between the first kvb_progress_draw() and kvb_progress_clear(), in
 * the thread that transfers. Must never write when stderr is not a terminal, must never wrap (a
 * wrapped line cannot be cleared with a carriage return), and must never touch stdout.
 */
#include "client/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "shm/util.h"

/* Short transfers never flash a bar. */
#define FIRST_DRAW_NS (300 * KVB_NS_PER_MS)
#define REDRAW_NS     (100 * KVB_NS_PER_MS)

#define BAR_MAX  32
#define BAR_MIN  8
#define LINE_MAX 256

bool kvb_terminal(int fd)
{
	const char *term = getenv("TERM");

	return isatty(fd) && term != NULL && strcmp(term, "dumb") != 0;
}

bool kvb_terminal_colour(int fd)
{
	const char *no_color = getenv("NO_COLOR");

	return kvb_terminal(fd) && (no_color == NULL || no_color[0] == '\0');
}

void kvb_progress_init(struct kvb_progress *progress, const char *label)
{
	*progress = (struct kvb_progress){
		.label = label,
		.enabled = kvb_terminal(STDERR_FILENO),
		.colour = kvb_terminal_colour(STDERR_FILENO),
	};
}

bool kvb_progress_due(struct kvb_progress *progress)
{
	uint64_t now;

	if (!progress->enabled)
		return false;
	now = kvb_now_ns();
	if (progress->start_ns == 0)
		progress->start_ns = now;
	return now - progress->start_ns >= FIRST_DRAW_NS && now - progress->last_ns >= REDRAW_NS;
}

static size_t terminal_columns(void)
{
	struct winsize size;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
		return 80;
	return size.ws_col;
}

static void format_bar(char *bar, size_t width, double share)
{
	size_t full = (size_t)(share * (double)width);

	memset(bar, ' ', width);
	memset(bar, '=', full);
	if (full < width)
		bar[full] = '>';
	bar[width] = '\0';
}

void kvb_progress_draw(
	struct kvb_progress *progress, uint64_t done, uint64_t total, const char *detail)
{
	/* One column stays free: some terminals wrap when the last one is written. */
	size_t columns = kvb_min_u64(terminal_columns() - 1, LINE_MAX - 1);
	size_t others = strlen(progress->label) + strlen(detail) + strlen(" [] 100 %  ");
	size_t width = columns > others + BAR_MIN ? kvb_min_u64(columns - others, BAR_MAX) : 0;
	double share = total == 0 ? 0.0 : (double)kvb_min_u64(done, total) / (double)total;
	char bar[BAR_MAX + 1];
	char line[LINE_MAX];

	if (width > 0) {
		format_bar(bar, width, share);
		snprintf(line, columns + 1, "%s [%s] %3.0f %%  %s", progress->label, bar,
			100.0 * share, detail);
	} else {
		snprintf(line, columns + 1, "%s %3.0f %%  %s", progress->label, 100.0 * share,
			detail);
	}
	fprintf(stderr, "\r%s%s%s\033[K", progress->colour ? "\033[36m" : "", line,
		progress->colour ? "\033[0m" : "");
	progress->drawn = true;
	progress->last_ns = kvb_now_ns();
}

void kvb_progress_clear(struct kvb_progress *progress)
{
	if (progress->drawn)
		fputs("\r\033[K", stderr);
	progress->drawn = false;
	progress->start_ns = 0;
}
