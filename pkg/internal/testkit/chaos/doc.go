// Package chaos hurts a real cluster and judges what comes of it. It is tests
// only: daemons and a three-member etcd as processes of their own, tasks that
// write down themselves what they did, faults that are drawn by a seed, and an
// observer that is no part of the cluster.
//
//	callers ──▶ daemons ══ links ══▶ etcd members ══ links ══▶ each other
//	   │           │                      │
//	   │           └── tasks ──▶ probe log│
//	acknowledged calls                    └──▶ recorder: every revision
//	   └───────────────┬──────────────────────────┘
//	               package check, and the judges here
//
// `go test ./pkg/internal/testkit/chaos` injects a few quick faults; `make chaos` runs for as
// long as it is told. docs/chaos.md lists the faults and what is judged.
package chaos
