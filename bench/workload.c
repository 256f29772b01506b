/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workload.c - see workload.h. Owns what it builds until it is returned; any thread.
 */
#include "bench/workload.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPTS       12 /* system prompts */
#define PROMPT_MIN    4  /* chunks */
#define PROMPT_MORE   12
#define TURN_MIN      1
#define TURN_MORE     5
#define OPEN_TALKS    24 /* conversations under way at a time */
#define TURNS_MIN     2
#define TURNS_MORE    6
#define PROMPT_CHUNKS 1000000u /* numbers of chunks of system prompts start here */

struct builder {
	struct kvb_workload workload;
	size_t n_chunks, room_chunks, room_requests;
};

static int grow(void **array, size_t *room, size_t need, size_t size)
{
	size_t more = *room ? 2 * *room : 1024;
	void *bigger;

	if (need <= *room)
		return 0;
	bigger = realloc(*array, more * size);
	if (!bigger)
		return -ENOMEM;
	*array = bigger;
	*room = more;
	return 0;
}

static int add_chunk(struct builder *builder, uint64_t chunk)
{
	int r = grow((void **)&builder->workload.chunks, &builder->room_chunks,
		builder->n_chunks + 1, sizeof(uint64_t));

	if (r == 0)
		builder->workload.chunks[builder->n_chunks++] = chunk;
	return r;
}

static int end_request(struct builder *builder)
{
	int r = grow((void **)&builder->workload.ends, &builder->room_requests,
		builder->workload.n_requests + 1, sizeof(size_t));

	if (r == 0)
		builder->workload.ends[builder->workload.n_requests++] = builder->n_chunks;
	return r;
}

void kvb_workload_free(struct kvb_workload *workload)
{
	free(workload->chunks);
	free(workload->ends);
	*workload = (struct kvb_workload){0};
}

const uint64_t *kvb_workload_request(
	const struct kvb_workload *workload, size_t request, size_t *ret_count)
{
	size_t start = request == 0 ? 0 : workload->ends[request - 1];

	*ret_count = workload->ends[request] - start;
	/* Requests without chunks may be all there is. */
	return *ret_count > 0 ? workload->chunks + start : NULL;
}

/* ------------------------------------------------------------------------------------------- a trace */

static int add_line(struct builder *builder, const char *line)
{
	json_t *object = json_loads(line, 0, NULL);
	json_t *ids = json_object_get(object, "hash_ids");
	size_t i;
	json_t *id;
	int r = json_is_array(ids) ? 0 : -EBADMSG;

	json_array_foreach(ids, i, id)
	{
		if (r == 0 && (!json_is_integer(id) || json_integer_value(id) < 0))
			r = -EBADMSG;
		if (r == 0)
			r = add_chunk(builder, (uint64_t)json_integer_value(id));
	}
	json_decref(object);
	return r < 0 ? r : end_request(builder);
}

int kvb_workload_read_lines(
	FILE *file, size_t max_requests, struct kvb_workload *ret_workload, size_t *ret_line)
{
	struct builder builder = {0};
	char *line = NULL;
	size_t size = 0, n_lines = 0;
	int r = 0;

	errno = 0;
	while (r == 0 && builder.workload.n_requests < max_requests &&
		getline(&line, &size, file) >= 0) {
		n_lines++;
		if (line[strspn(line, " \t\r\n")] != '\0')
			r = add_line(&builder, line);
	}
	if (r == 0 && ferror(file))
		r = errno ? -errno : -EIO;
	free(line);
	if (r < 0) {
		*ret_line = n_lines;
		kvb_workload_free(&builder.workload);
		return r;
	}
	*ret_workload = builder.workload;
	return 0;
}

int kvb_workload_read(
	const char *path, size_t max_requests, struct kvb_workload *ret_workload, size_t *ret_line)
{
	FILE *file = fopen(path, "re");
	int r;

	if (!file)
		return -errno;
	r = kvb_workload_read_lines(file, max_requests, ret_workload, ret_line);
	fclose(file);
	return r;
}

/* ------------------------------------------------------------------------------------------ generated */

struct talk {
	unsigned prompt;
	unsigned turns_left;
	uint64_t first_chunk; /* its own chunks are numbered from here */
	unsigned n_chunks;
};

/* splitmix64, https://prng.di.unimi.it/splitmix64.c */
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* The first half of the prompts at hand is taken twice as often as the second, again and again. */
static unsigned popular(uint64_t *random, unsigned n)
{
	while (n > 1 && next_random(random) % 3 != 0)
		n = (n + 1) / 2;
	return (unsigned)(next_random(random) % n);
}

static void begin_talk(struct talk *talk, uint64_t *random, uint64_t *next_chunk)
{
	/* One after the other: C orders no initialisers, and a seed must mean the same everywhere. */
	unsigned prompt = popular(random, PROMPTS);
	unsigned turns = TURNS_MIN + (unsigned)(next_random(random) % TURNS_MORE);

	*talk = (struct talk){.prompt = prompt, .turns_left = turns, .first_chunk = *next_chunk};
	*next_chunk += (TURNS_MIN + TURNS_MORE) * (TURN_MIN + TURN_MORE);
}

static int add_turn(struct builder *builder, struct talk *talk, uint64_t *random)
{
	/* A prompt's length belongs to the prompt. */
	unsigned prompt = PROMPT_MIN + talk->prompt * 7 % PROMPT_MORE;
	int r = 0;

	talk->n_chunks += TURN_MIN + (unsigned)(next_random(random) % TURN_MORE);
	talk->turns_left--;
	for (unsigned i = 0; i < prompt && r == 0; i++)
		r = add_chunk(builder, PROMPT_CHUNKS + talk->prompt * 100u + i);
	for (unsigned i = 0; i < talk->n_chunks && r == 0; i++)
		r = add_chunk(builder, talk->first_chunk + i);
	return r < 0 ? r : end_request(builder);
}

int kvb_workload_generate(uint64_t seed, size_t n_requests, struct kvb_workload *ret_workload)
{
	struct builder builder = {0};
	struct talk talks[OPEN_TALKS] = {{0}};
	uint64_t random = seed, next_chunk = 2 * (uint64_t)PROMPT_CHUNKS;
	int r = 0;

	for (size_t i = 0; i < n_requests && r == 0; i++) {
		struct talk *talk = &talks[next_random(&random) % OPEN_TALKS];
		if (talk->turns_left == 0)
			begin_talk(talk, &random, &next_chunk);
		r = add_turn(&builder, talk, &random);
	}
	if (r < 0)
		kvb_workload_free(&builder.workload);
	else
		*ret_workload = builder.workload;
	return r;
}
