/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir.c - see dir.h. Owns nothing; any thread, as far as the environment is left alone.
 */
#include "shm/dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int kvb_runtime_dir(char *ret_dir, size_t size)
{
	const char *own = secure_getenv("KVBELL_DIR");
	const char *user = secure_getenv("XDG_RUNTIME_DIR");
	int n;

	if (own && own[0])
		n = snprintf(ret_dir, size, "%s", own);
	else if (user && user[0])
		n = snprintf(ret_dir, size, "%s/kvbell", user);
	else
		n = snprintf(ret_dir, size, "/run/kvbell");
	return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}
