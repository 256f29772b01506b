/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c - runs a fuzz target over its corpus, in builds without libFuzzer: each file once, named
 * before it runs, so that a crash says which. Counts as one test, in the words of cmocka.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

#pragma weak LLVMFuzzerInitialize

static uint8_t *read_file(const char *path, size_t *ret_size)
{
	FILE *file = fopen(path, "re");
	uint8_t *data = NULL;
	long size = -1;

	if (file && fseek(file, 0, SEEK_END) == 0)
		size = ftell(file);
	if (size >= 0)
		data = malloc((size_t)size + !size);
	if (data) {
		rewind(file);
		*ret_size = fread(data, 1, (size_t)size, file);
	}
	if (file)
		fclose(file);
	return data;
}

static bool run_file(const char *path)
{
	size_t size;
	uint8_t *data = read_file(path, &size);

	fprintf(stderr, "%s\n", path);
	if (data)
		(void)LLVMFuzzerTestOneInput(data, size);
	free(data);
	return data != NULL;
}

/* Returns how many were run, or -1. */
static int run_folder(const char *folder)
{
	struct dirent **entries;
	int n = scandir(folder, &entries, NULL, alphasort), ran = 0;

	for (int i = 0; i < n; i++) {
		char path[4096];
		bool is_file = entries[i]->d_name[0] != '.';
		snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
		free(entries[i]);
		if (!is_file || ran < 0)
			continue;
		ran = run_file(path) ? ran + 1 : -1;
	}
	if (n >= 0)
		free(entries);
	return n < 0 ? -1 : ran;
}

int main(int argc, char **argv)
{
	int ran;

	if (argc != 3) {
		fprintf(stderr, "usage: %s NAME FOLDER\n", argv[0]);
		return 2;
	}
	printf("[ RUN      ] %s\n", argv[1]);
	fflush(stdout);
	if (LLVMFuzzerInitialize)
		(void)LLVMFuzzerInitialize(&argc, &argv);
	ran = run_folder(argv[2]);
	if (ran <= 0) {
		fprintf(stderr, "there is nothing to run in %s\n", argv[2]);
		printf("[  FAILED  ] %s\n", argv[1]);
		return 1;
	}
	printf("[       OK ] %s\n", argv[1]);
	fprintf(stderr, "%d files\n", ran);
	return 0;
}
