/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool_io.c - whole payloads from and to files, and the honesty of stdout.
 *
 * Owns the descriptors it opens; main thread. Must never report success for output that did not
 * arrive (full disk, closed pipe), and must never read more of a pipe than a server could store.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/tool.h"
#include "shm/util.h"

#define FIRST_BUFFER KVB_MIB

static bool is_standard(const char *path)
{
	return path == NULL || strcmp(path, "-") == 0;
}

static int grow(struct kvb_input *input, size_t *capacity)
{
	size_t more = *capacity == 0 ? FIRST_BUFFER : 2 * *capacity;
	void *buffer = realloc(input->buffer, more);

	if (buffer == NULL)
		return -ENOMEM;
	input->buffer = buffer;
	*capacity = more;
	return 0;
}

static int read_stream(int fd, uint64_t max, struct kvb_input *input)
{
	size_t capacity = 0;
	ssize_t n;
	int r;

	for (;;) {
		if (input->len == capacity) {
			r = grow(input, &capacity);
			if (r < 0)
				return r;
		}
		n = read(fd, (char *)input->buffer + input->len, capacity - input->len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		input->len += (size_t)n;
		if (input->len > max)
			return -EFBIG;
	}
	input->data = input->buffer;
	return 0;
}

/* Maps what lies behind the descriptor's position. 1: not a file to be mapped, read it. */
static int map_file(int fd, struct kvb_input *input)
{
	struct stat st;
	off_t start = lseek(fd, 0, SEEK_CUR);
	void *map;

	/* Files of /proc and the like say that they are empty, and are not. */
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || start < 0 || st.st_size <= start)
		return 1;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return errno == ENODEV ? 1 : -errno;
	input->map = map;
	input->map_len = (size_t)st.st_size;
	input->data = (const char *)map + start;
	input->len = (size_t)(st.st_size - start);
	return 0;
}

/* Reads all of `path`; NULL or "-" is stdin. 0; -EFBIG a pipe brought more than `max` bytes;
 * otherwise what open(2), read(2) or mmap(2) said. */
int kvb_input_read(const char *path, uint64_t max, struct kvb_input *ret_input)
{
	struct kvb_input input = {0};
	int fd = is_standard(path) ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
	int r;

	if (fd < 0)
		return -errno;
	r = map_file(fd, &input);
	if (r > 0)
		r = read_stream(fd, max, &input);
	if (fd != STDIN_FILENO)
		close(fd);
	if (r < 0)
		kvb_input_free(&input);
	else
		*ret_input = input;
	return r;
}

void kvb_input_free(struct kvb_input *input)
{
	if (input->map != NULL)
		munmap(input->map, input->map_len);
	free(input->buffer);
}

static int write_all(int fd, const char *data, size_t len)
{
	while (len > 0) {
		ssize_t n = write(fd, data, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

/* Replaces the content of `path`; NULL or "-" is stdout. */
int kvb_output_write(const char *path, const void *data, size_t len)
{
	int fd;
	int r;

	if (is_standard(path))
		return write_all(STDOUT_FILENO, data, len);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	r = write_all(fd, data, len);
	/* Some file systems report a full disk only here. */
	if (close(fd) < 0 && r == 0)
		r = -errno;
	return r;
}

/* Prints and releases `json`; NULL, which is what a failed allocation left, is -ENOMEM. */
int kvb_output_json(json_t *json)
{
	int r = json == NULL ? -ENOMEM : json_dumpf(json, stdout, JSON_INDENT(2));

	json_decref(json);
	putchar('\n');
	return r == -ENOMEM ? r : kvb_output_check();
}

/* 0 while everything printed so far could be written. */
int kvb_output_check(void)
{
	if (!ferror(stdout))
		return 0;
	return errno > 0 ? -errno : -EIO;
}
