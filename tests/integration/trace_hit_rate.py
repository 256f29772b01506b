#!/usr/bin/env python3
"""Prefix hit rate of an unbounded cache: trace_hit_rate.py TRACE REQUESTS"""
import json
import sys

seen, asked, found = set(), 0, 0
for line in open(sys.argv[1]).readlines()[: int(sys.argv[2])]:
    chunks = json.loads(line)["hash_ids"]
    known = next((i for i, chunk in enumerate(chunks) if chunk not in seen), len(chunks))
    asked, found = asked + len(chunks), found + known
    seen.update(chunks)
print(f"asked {asked} found {found} hit rate {100 * found / asked:.4f} %")
