/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embedded.c - see embedded.h.
 *
 * Owns the server and its directory. The log callback runs in the server's threads and touches
 * nothing but the buffer; no assertion may stand there.
 */
#include "tests/embedded.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/util.h"

#define WAIT_NS (20 * KVB_NS_PER_S)

static void keep_line(void *user, enum kvb_log_level level, const char *text)
{
	struct embedded *embedded = user;
	size_t len = strlen(text);
	char *log;

	(void)level;
	pthread_mutex_lock(&embedded->log_lock);
	log = realloc(embedded->log, embedded->log_len + len + 2);
	if (log) {
		memcpy(log + embedded->log_len, text, len);
		embedded->log_len += len;
		log[embedded->log_len++] = '\n';
		log[embedded->log_len] = '\0';
		embedded->log = log;
	}
	pthread_mutex_unlock(&embedded->log_lock);
}

void embedded_config(struct kvb_server_options *config)
{
	kvb_server_options_init(config, sizeof(*config));
	config->pool_bytes = 64 * KVB_MIB;
	config->staging_bytes = KVB_MIB;
	config->workers = 2;
	config->sessions_max = 16;
	config->high_percent = config->low_percent = 100;
	config->log.level = KVB_LOG_DEBUG;
}

int embedded_make(struct embedded *embedded, struct kvb_server_options *config)
{
	int r;

	*embedded = (struct embedded){.dir = "/tmp/kvbell-test-XXXXXX"};
	pthread_mutex_init(&embedded->log_lock, NULL);
	if (!mkdtemp(embedded->dir))
		return -errno;
	config->dir = embedded->dir;
	config->log.fn = keep_line;
	config->log.user = embedded;
	r = kvb_server_new(config, &embedded->server);
	if (r < 0)
		rmdir(embedded->dir);
	return r;
}

int embedded_start(struct embedded *embedded, struct kvb_server_options *config)
{
	int r = embedded_make(embedded, config);

	if (r < 0)
		return r;
	r = kvb_server_start(embedded->server);
	if (r < 0) {
		kvb_server_free(embedded->server);
		rmdir(embedded->dir);
	}
	return r;
}

static void remove_dir(const char *dir)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, KVB_LOCK_FILE);
	unlink(path);
	/* Fails, and shows up in the next test, when a socket was left behind. */
	if (rmdir(dir) < 0)
		fprintf(stderr, "cannot remove %s: %s\n", dir, strerror(errno));
}

int embedded_stop(struct embedded *embedded)
{
	int r;

	kvb_server_stop_begin(embedded->server);
	r = kvb_server_stop_wait(embedded->server);
	if (r < 0) {
		/* The server is left as it is: its log says what is stuck. */
		fputs(embedded->log, stderr);
		return r;
	}
	kvb_server_free(embedded->server);
	embedded->server = NULL;
	remove_dir(embedded->dir);
	free(embedded->log);
	embedded->log = NULL;
	pthread_mutex_destroy(&embedded->log_lock);
	return 0;
}

char *embedded_log(struct embedded *embedded)
{
	char *copy;

	pthread_mutex_lock(&embedded->log_lock);
	copy = strdup(embedded->log ? embedded->log : "");
	pthread_mutex_unlock(&embedded->log_lock);
	return copy;
}

long embedded_log_find(struct embedded *embedded, const char *text, long from)
{
	char *log = embedded_log(embedded);
	char *found = log ? strstr(log + from, text) : NULL;
	long at = found ? found - log : -1;

	free(log);
	return at;
}

bool embedded_wait(bool (*condition)(const void *arg), const void *arg)
{
	uint64_t deadline = kvb_now_ns() + WAIT_NS;

	while (!condition(arg)) {
		if (kvb_now_ns() > deadline)
			return false;
		poll(NULL, 0, 1);
	}
	return true;
}

static bool is_draining(const void *server)
{
	return kvb_server_is_draining((struct kvb_server *)server);
}

bool embedded_wait_draining(struct embedded *embedded)
{
	return embedded_wait(is_draining, embedded->server);
}
