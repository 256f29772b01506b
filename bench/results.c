/* SPDX-License-Identifier: Apache-2.0 */
/*
 * results.c - see results.h.
 *
 * Owns nothing but the table it is given; main thread. It must never print a figure without the
 * limit that it was measured beside, in the same run: machines are shared, and only ratios last.
 */
#include "bench/results.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "kvbell/kvbell.h"

/* By enum kvb_unit. */
static const char *const unit_names[] = {"us", "ns", "ns/key", "GB/s", "%"};

static double value_at(const struct kvb_histogram *took_ns, double share, struct kvb_scale scale)
{
	double ns = (double)kvb_histogram_quantile(took_ns, share);

	switch (scale.unit) {
	case KVB_UNIT_US:
		return ns / 1000;
	case KVB_UNIT_GBPS:
		return (double)scale.per / ns;
	case KVB_UNIT_NS_KEY:
		return ns / (double)scale.per;
	default:
		return ns;
	}
}

const struct kvb_result *kvb_results_find(const struct kvb_results *results, const char *name)
{
	for (unsigned i = 0; i < results->count; i++)
		if (strcmp(results->of[i].name, name) == 0)
			return &results->of[i];
	return NULL;
}

void kvb_results_print_head(void)
{
	printf("%-34s %9s %10s %10s %10s %10s  %s\n", "name", "n", "p50", "p99", "p99.9", "max",
		"beside its limit");
	fflush(stdout);
}

static void print_line(const struct kvb_result *result)
{
	printf("%-34s %9llu %10.2f %10.2f %10.2f %10.2f  %s", result->name,
		(unsigned long long)result->n, result->p50, result->p99, result->p999, result->max,
		unit_names[result->unit]);
	if (result->limit_name[0])
		printf("  %s%.2f of %s (%.2f)", result->tail ? "p99 " : "", result->ratio,
			result->limit_name, result->limit);
	printf("\n");
	fflush(stdout);
}

/* NULL: there is no room. */
static struct kvb_result *append(
	struct kvb_results *results, const char *name, enum kvb_unit unit, uint64_t n)
{
	struct kvb_result *result = &results->of[results->count];

	if (results->count == KVB_RESULTS_MAX)
		return NULL;
	*result = (struct kvb_result){.unit = unit, .n = n};
	snprintf(result->name, sizeof(result->name), "%s", name);
	results->count++;
	return result;
}

/* NULL: there is no room, or nothing was measured. */
static struct kvb_result *append_times(struct kvb_results *results, const char *name,
	const struct kvb_histogram *took_ns, struct kvb_scale scale)
{
	struct kvb_result *result =
		took_ns->count > 0 ? append(results, name, scale.unit, took_ns->count) : NULL;

	if (!result)
		return NULL;
	result->p50 = value_at(took_ns, 0.5, scale);
	result->p99 = value_at(took_ns, 0.99, scale);
	result->p999 = value_at(took_ns, 0.999, scale);
	result->max = value_at(took_ns, 1, scale);
	return result;
}

static void judge(struct kvb_result *result, const char *limit_name, double limit, bool tail)
{
	snprintf(result->limit_name, sizeof(result->limit_name), "%s", limit_name);
	result->tail = tail;
	result->limit = limit;
	result->ratio = (tail ? result->p99 : result->p50) / limit;
}

void kvb_results_add(struct kvb_results *results, const char *name,
	const struct kvb_histogram *took_ns, struct kvb_scale scale, const char *limit, bool quiet)
{
	const struct kvb_result *beside = limit ? kvb_results_find(results, limit) : NULL;
	struct kvb_result *result = append_times(results, name, took_ns, scale);

	if (result && beside)
		judge(result, limit, beside->p50, false);
	if (result && !quiet)
		print_line(result);
}

void kvb_results_add_tail(struct kvb_results *results, const char *name,
	const struct kvb_histogram *took_ns, const char *limit_name, double limit, bool quiet)
{
	struct kvb_result *result = append_times(results, name, took_ns, KVB_SCALE_US);

	if (!result)
		return;
	judge(result, limit_name, limit, true);
	if (!quiet)
		print_line(result);
}

void kvb_results_add_percent(
	struct kvb_results *results, const char *name, uint64_t n, double percent, bool quiet)
{
	struct kvb_result *result = append(results, name, KVB_UNIT_PERCENT, n);

	if (!result)
		return;
	result->p50 = result->p99 = result->p999 = result->max = percent;
	if (!quiet)
		print_line(result);
}

void kvb_results_leave_out(
	struct kvb_results *results, const char *name, const char *why, bool quiet)
{
	struct kvb_left_out *left_out = &results->left_out[results->n_left_out];

	if (!quiet) {
		printf("%-34s left out: %s\n", name, why);
		fflush(stdout);
	}
	if (results->n_left_out == KVB_LEFT_OUT_MAX)
		return;
	snprintf(left_out->name, sizeof(left_out->name), "%s", name);
	snprintf(left_out->why, sizeof(left_out->why), "%s", why);
	results->n_left_out++;
}

static double p50_of(const struct kvb_results *results, const char *name)
{
	const struct kvb_result *result = kvb_results_find(results, name);

	return result ? result->p50 : 0;
}

/* null: anywhere. */
static json_t *pack_cpus(const cpu_set_t *cpus)
{
	char text[256];

	return cpus ? json_string(kvb_format_cpus(cpus, text, sizeof(text))) : json_null();
}

static json_t *pack_machine(const struct kvb_placement *placement)
{
	struct utsname name;

	uname(&name);
	return json_pack("{s:s, s:s, s:i, s:s, s:o, s:o, s:o}", "kernel", name.release,
		"architecture", name.machine, "cpus", (int)sysconf(_SC_NPROCESSORS_ONLN), "kvbell",
		kvb_version(), "server_cpus", pack_cpus(placement->server_cpus), "client_cpus",
		pack_cpus(placement->client_cpus), "numa_node",
		placement->node == KVB_NODE_ANY ? json_null() : json_integer(placement->node));
}

static json_t *pack_limits(const struct kvb_results *results)
{
	return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "memcpy_GBps",
		p50_of(results, "memcpy.32MiB"), "ntcopy_GBps", p50_of(results, "ntcopy.32MiB"),
		"eventfd_rtt_us", p50_of(results, "eventfd.rtt"), "cacheline_rtt_us",
		p50_of(results, "cacheline.rtt"), "zmq_rtt_us", p50_of(results, "zmq.rtt"),
		"dram_load_ns", p50_of(results, "dram.load"));
}

static json_t *pack_results(const struct kvb_results *results)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < results->count; i++) {
		const struct kvb_result *result = &results->of[i];
		json_array_append_new(list,
			json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:s, s:f, s:f}", "name",
				result->name, "unit", unit_names[result->unit], "n",
				(json_int_t)result->n, "p50", result->p50, "p99", result->p99,
				"p999", result->p999, "max", result->max, "judged",
				result->tail ? "p99" : "p50", "limit", result->limit, "ratio",
				result->ratio));
	}
	return list;
}

static json_t *pack_left_out(const struct kvb_results *results)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < results->n_left_out; i++)
		json_array_append_new(list,
			json_pack("{s:s, s:s}", "name", results->left_out[i].name, "why",
				results->left_out[i].why));
	return list;
}

int kvb_results_print_json(
	const struct kvb_results *results, const char *suite, const struct kvb_placement *placement)
{
	json_t *all = json_pack("{s:i, s:s, s:o, s:o, s:o, s:o}", "schema", 1, "suite", suite,
		"machine", pack_machine(placement), "limits", pack_limits(results), "results",
		pack_results(results), "left_out", pack_left_out(results));
	int r = json_dumpf(all, stdout, JSON_INDENT(1)) < 0 || printf("\n") < 0 ? -EIO : 0;

	json_decref(all);
	return r;
}
