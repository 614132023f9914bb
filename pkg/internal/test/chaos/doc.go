// Package chaos injects faults into a real cluster and judges the results. It contains only tests: daemons and a
// three-member etcd run as separate processes, tasks record themselves what they did, a seed determines the
// faults, and an observer that is not part of the cluster records every revision.
//
//	callers ──▶ daemons ══ links ══▶ etcd members ══ links ══▶ each other
//	   │           │                      │
//	   │           └── tasks ──▶ probe log│
//	acknowledged calls                    └──▶ recorder: every revision
//	   └───────────────┬──────────────────────────┘
//	               package check, and the judges here
//
// `go test ./pkg/internal/test/chaos` injects a few quick faults. `make chaos` runs for a given duration.
// docs/internals/chaos.md describes the cluster and what is judged.
package chaos
