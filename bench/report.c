/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - see report.h. Owns nothing; main thread. It must never round a hit rate so that two
 * that differ look alike: the counts stand beside it.
 */
#include "bench/report.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "shm/parse.h"

static const char *const op_names[] = {"exists", "get", "put"};

void kvb_demo_result_merge(struct kvb_demo_result *into, const struct kvb_demo_result *from)
{
	into->requests += from->requests;
	into->asked += from->asked;
	into->found += from->found;
	into->lost += from->lost;
	into->stored += from->stored;
	into->present += from->present;
	into->unstored += from->unstored;
	into->moved_bytes += from->moved_bytes;
	into->mismatches += from->mismatches;
	for (unsigned i = 0; i < KVB_DEMO_OPS; i++)
		kvb_histogram_merge(&into->took[i], &from->took[i]);
}

static double hit_rate(const struct kvb_demo_result *all)
{
	return all->asked ? 100.0 * (double)all->found / (double)all->asked : 0.0;
}

static double gb_per_s(const struct kvb_demo_report *report)
{
	return report->wall_ns ? (double)report->all.moved_bytes / (double)report->wall_ns : 0.0;
}

static const char *format_time(char *buffer, size_t size, uint64_t ns)
{
	if (ns < 10000000)
		snprintf(buffer, size, "%.1f us", (double)ns / 1e3);
	else
		snprintf(buffer, size, "%.1f ms", (double)ns / 1e6);
	return buffer;
}

static uint64_t loads(const struct kvb_demo_report *report)
{
	return report->all.took[KVB_DEMO_GET].count;
}

/* Those that came to the server; a load may do so more than once. */
static uint64_t loads_asked(const struct kvb_demo_report *report)
{
	return report->asked < loads(report) ? report->asked : loads(report);
}

static void print_counts(const struct kvb_demo_report *report)
{
	const struct kvb_demo_result *all = &report->all;

	printf("  %-26s %12" PRIu64 "   by %u engines, %s\n", "requests", all->requests,
		report->engines, report->ordered ? "one after the other" : "at the same time");
	printf("  %-26s %12" PRIu64 "\n", "chunks asked for", all->asked);
	printf("  %-26s %12" PRIu64 "   hit rate %.4f %%\n", "chunks loaded", all->found,
		hit_rate(all));
	printf("  %-26s %12" PRIu64 "\n", "chunks stored", all->stored);
	printf("  %-26s %12" PRIu64 "   %" PRIu64 " of them between lookup and load\n",
		"chunks evicted", report->evicted, all->lost);
	if (all->unstored)
		printf("  %-26s %12" PRIu64 "   there was no room just then\n", "chunks not stored",
			all->unstored);
	if (all->present)
		printf("  %-26s %12" PRIu64 "   when they were to be stored: nothing was moved\n",
			"chunks already there", all->present);
	printf("  %-26s %12s   %" PRIu64 " of %" PRIu64 " loads without a message\n", "reads",
		report->reads, loads(report) - loads_asked(report), loads(report));
	printf("  %-26s %9.2f GB   in %.2f s: %.2f GB/s, payload made and verified\n",
		"payload moved", (double)all->moved_bytes / 1e9, (double)report->wall_ns / 1e9,
		gb_per_s(report));
}

static void print_times(const struct kvb_demo_report *report)
{
	char p50[24], p99[24];

	printf("\n  %-10s %12s %14s %14s\n", "operation", "count", "p50", "p99");
	for (unsigned i = 0; i < KVB_DEMO_OPS; i++) {
		const struct kvb_histogram *took = &report->all.took[i];
		printf("  %-10s %12" PRIu64 " %14s %14s\n", op_names[i], took->count,
			format_time(p50, sizeof(p50), kvb_histogram_quantile(took, 0.50)),
			format_time(p99, sizeof(p99), kvb_histogram_quantile(took, 0.99)));
	}
}

static int check_output(void)
{
	return fflush(stdout) != 0 || ferror(stdout) ? (errno ? -errno : -EIO) : 0;
}

int kvb_demo_report_print(const struct kvb_demo_report *report)
{
	putchar('\n');
	print_counts(report);
	print_times(report);
	printf("\nmismatches: %" PRIu64 "\n", report->all.mismatches);
	return check_output();
}

static json_t *time_json(const struct kvb_histogram *took)
{
	return json_pack("{s:I, s:I, s:I}", "count", (json_int_t)took->count, "p50_ns",
		(json_int_t)kvb_histogram_quantile(took, 0.50), "p99_ns",
		(json_int_t)kvb_histogram_quantile(took, 0.99));
}

int kvb_demo_report_json(const struct kvb_demo_report *report)
{
	const struct kvb_demo_result *all = &report->all;
	json_t *json = json_pack(
		"{s:i, s:I, s:i, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:f, s:I, s:s, s:I, s:I}",
		"schema", 1, "requests", (json_int_t)all->requests, "engines", (int)report->engines,
		"ordered", (int)report->ordered, "chunks_asked", (json_int_t)all->asked,
		"chunks_loaded", (json_int_t)all->found, "chunks_lost", (json_int_t)all->lost,
		"chunks_stored", (json_int_t)all->stored, "chunks_not_stored",
		(json_int_t)all->unstored, "chunks_present", (json_int_t)all->present,
		"chunks_evicted", (json_int_t)report->evicted, "hit_rate_percent", hit_rate(all),
		"moved_bytes", (json_int_t)all->moved_bytes, "wall_ns", (json_int_t)report->wall_ns,
		"gb_per_s", gb_per_s(report), "mismatches", (json_int_t)all->mismatches, "reads",
		report->reads, "loads", (json_int_t)loads(report), "loads_asked",
		(json_int_t)loads_asked(report));

	for (unsigned i = 0; json && i < KVB_DEMO_OPS; i++)
		json_object_set_new(json, op_names[i], time_json(&all->took[i]));
	if (!json || json_dumpf(json, stdout, JSON_INDENT(2)) < 0) {
		json_decref(json);
		return -EIO;
	}
	json_decref(json);
	putchar('\n');
	return check_output();
}
