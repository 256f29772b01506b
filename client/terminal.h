/* SPDX-License-Identifier: Apache-2.0 */
/*
 * terminal.h - what the programs do only when a person watches: colour and a progress line.
 * Not part of the library. One thread at a time per struct kvb_progress.
 */
#ifndef KVB_CLIENT_TERMINAL_H
#define KVB_CLIENT_TERMINAL_H

#include <stdbool.h>
#include <stdint.h>

/* True when fd is a terminal that understands escape sequences. */
bool kvb_terminal(int fd);

/* The same, and nobody objects to colour (NO_COLOR, see https://no-color.org). */
bool kvb_terminal_colour(int fd);

/* A progress line on stderr. Zero-initialised it stays silent. */
struct kvb_progress {
	const char *label;
	bool enabled;
	bool colour;
	bool drawn;
	uint64_t start_ns;
	uint64_t last_ns;
};

/* `label` stays the caller's and must live as long as the line. */
void kvb_progress_init(struct kvb_progress *progress, const char *label);

/* True when drawing now makes sense: cheap, so callers ask before they format the detail. */
bool kvb_progress_due(struct kvb_progress *progress);

/* "label [=====>     ]  48 %  detail", cut at the terminal's width. */
void kvb_progress_draw(
	struct kvb_progress *progress, uint64_t done, uint64_t total, const char *detail);

/* Leaves an empty line behind and starts over: the next draw waits again. */
void kvb_progress_clear(struct kvb_progress *progress);

#endif /* KVB_CLIENT_TERMINAL_H */
