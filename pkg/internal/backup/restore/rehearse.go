package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/audit"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Rehearsal is the result of a rehearsed restore.
type Rehearsal struct {
	Plan *Plan `json:"plan"`
	// Findings are what an audit of the restored content has found, and Keys how many records it has read.
	Findings []task.Finding `json:"findings"`
	Keys     int64          `json:"keys"`
	// NotProved is what the rehearsal could not prove.
	NotProved []string `json:"not_proved"`
	Steps     []Step   `json:"steps"`
	Seconds   float64  `json:"seconds"`
	Size      int64    `json:"size"` // of the restored database
}

// Step is a step of a restore, and how long it took.
type Step struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Rehearse restores a backup into the work directory as if the cluster were lost, audits the result, and removes it. It neither asks the
// nodes of the backup nor touches the data directory of the host, so it can run at any time.
func Rehearse(ctx context.Context, stored *backup.Stored, host *Host, o *Options) (r *Rehearsal, err error) {
	r = &Rehearsal{Findings: []task.Finding{}, NotProved: []string{}}
	began := time.Now()
	last := began

	progress := o.Progress
	o.Progress = func(step string) {
		r.finishStep(&last)
		r.Steps = append(r.Steps, Step{Name: step})
		if progress != nil {
			progress(step)
		}
	}
	o.inspect = func(ctx context.Context, s *store.Store, c task.Cluster) error {
		if err := o.beginStep("audit"); err != nil {
			return err
		}

		found, err := audit.Auditor{
			Store: s, Offline: true, Node: o.Node,
			Ref: func(namespace, name string) record.Ref {
				return record.Ref{Namespace: namespace, Name: name, Shard: record.ShardOf(namespace, name, c.Shards)}
			},
		}.Run(ctx)
		r.Findings, r.Keys = found.Findings, found.Keys

		return err
	}

	defer func() {
		for _, name := range []string{recordFile, PreparedFile, planFile} {
			err = errors.Join(err, os.RemoveAll(filepath.Join(o.Work, name)))
		}
	}()

	plan, p, err := run(ctx, stored, host, o, nil, false)
	if err != nil {
		return nil, err
	}

	r.finishStep(&last)
	r.Plan, r.Size, r.Seconds = plan, p.Size, time.Since(began).Seconds()
	if len(plan.MissingKeys) > 0 {
		r.NotProved = append(r.NotProved, fmt.Sprintf("secrets: this host does not have the keys %s", strings.Join(plan.MissingKeys, ", ")))
	}

	return r, nil
}

// finishStep stores how long the last step took.
func (r *Rehearsal) finishStep(last *time.Time) {
	now := time.Now()
	if n := len(r.Steps); n > 0 {
		r.Steps[n-1].Seconds = now.Sub(*last).Seconds()
	}
	*last = now
}
