package check

import (
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
