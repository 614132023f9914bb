package check

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestCheck_ASweepDeletesExpiredTokensOnly(t *testing.T) {
	for _, c := range []struct {
		name, promise string
		happen        func(s *sim)
	}{
		{"an expired token", "", func(s *sim) {
			s.issue("t3", "user:ann", func(t *task.Token) { t.Until = s.time() })
			s.pass(1)
			s.audited(sweepTokens, "node:n1", "", nil, op{s.keys.Token("t3"), nil})
		}},
		{"a token that has not expired", "G27", func(s *sim) {
			s.issue("t3", "user:ann", func(t *task.Token) { t.Until = task.At(s.time().Add(1 << 40)) })
			s.audited(sweepTokens, "node:n1", "", nil, op{s.keys.Token("t3"), nil})
		}},
		{"a token without an end", "G27", func(s *sim) {
			s.audited(sweepTokens, "node:n1", "", nil, op{s.keys.Token("t1"), nil})
		}},
		{"a task", "G27", func(s *sim) {
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
			s.audited(sweepTokens, "node:n1", "", nil, op{s.spec("default", "x", nil).key, nil})
		}},
		{"a binding", "G27", func(s *sim) {
			s.audited(sweepTokens, "node:n1", "", nil, op{s.keys.Binding("editors"), nil}, op{s.keys.Fence(), record.Fence{}})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := governed(t)
			c.happen(s)
			only(t, s.checkAccess(Options{Audited: true}), c.promise)
		})
	}
}

func TestCheck_AuditRecordsAreRemovedWithAGap(t *testing.T) {
	gap := func(s *sim, removed int64) op {
		g := task.AuditGap{Why: task.GapAge, Removed: removed}
		return op{s.keys.AuditGap(&g), g}
	}

	for _, c := range []struct {
		name, promise string
		happen        func(s *sim, key string)
	}{
		{"with a gap", "", func(s *sim, key string) { s.txn(op{key, nil}, gap(s, 1)) }},
		{"without a gap", "G28", func(s *sim, key string) { s.txn(op{key, nil}) }},
		{"with a gap of more", "G28", func(s *sim, key string) { s.txn(op{key, nil}, gap(s, 2)) }},
		{"a gap in another transaction", "G28", func(s *sim, key string) { s.txn(gap(s, 1)); s.txn(op{key, nil}) }},
		{"a gap that only replaces others", "", func(s *sim, _ string) { s.txn(gap(s, 0)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := governed(t)
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
			key := ""
			for _, ev := range s.events {
				if strings.HasPrefix(ev.Key, s.keys.AuditRecords()) {
					key = ev.Key
				}
			}
			c.happen(s, key)
			only(t, s.checkAccess(Options{Audited: true}), c.promise)
		})
	}
}
