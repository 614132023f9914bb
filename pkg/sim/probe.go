package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// probes is what attempts did, whatever anybody believes.
type probes struct {
	mu   sync.Mutex
	log  strings.Builder // as the probe tasks of real clusters write it
	runs []*probe
}

// probe is one attempt that started.
type probe struct {
	task.Assigned
	node       string
	token      int64
	start, end time.Time // end is when the last of it was gone
}

func (p *probes) start(node string, a task.Assigned, token int64) *probe {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := &probe{Assigned: a, node: node, token: token, start: time.Now()}
	p.runs = append(p.runs, one)
	p.line("START", one)
	return one
}

// end notes that nothing is left of an attempt; one that was killed writes no END.
func (p *probes) end(one *probe, itself bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.end = time.Now()
	if itself {
		p.line("END", one)
	}
}

func (p *probes) line(word string, one *probe) {
	fmt.Fprintf(&p.log, "%s %s %d %d %d %s\n", word, one.ID, max(one.Attempt, 1), one.token, time.Now().UnixMilli(), one.node)
}

// judge looks for attempts that lived on beside those that replaced them.
func (p *probes) judge() (violations []check.Violation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	byTask := map[string][]*probe{}
	for _, one := range p.runs {
		name := one.Namespace + "/" + one.Task + "/" + one.UID
		byTask[name] = append(byTask[name], one)
	}
	for _, all := range byTask {
		slices.SortStableFunc(all, func(a, b *probe) int { return a.start.Compare(b.start) })
		for i, b := range all {
			for _, a := range all[:i] {
				if !b.start.Before(a.end) && !a.end.IsZero() {
					continue
				}
				promise := ""
				switch {
				case a.ID == b.ID:
					promise = "G17" // the one before should be dead
				case overlapOf(a.Task) != task.OverlapAllow && !task.Siblings(a.ID, b.ID):
					promise = "G8"
				}
				if promise != "" {
					violations = append(violations, check.Violation{
						Promise: promise, Revision: b.token, Task: b.Namespace + "/" + b.Task,
						Message: fmt.Sprintf("run %s, attempt %d on %s (token %d), starts at %s; run %s, attempt %d on %s (token %d), lives from %s to %s",
							b.ID, max(b.Attempt, 1), b.node, b.token, clock(b.start), a.ID, max(a.Attempt, 1), a.node, a.token, clock(a.start), clock(a.end)),
					})
				}
			}
		}
	}
	return violations
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
