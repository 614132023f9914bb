package audit

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	membersTimeout = 2 * time.Second
	// farBehind is by how many entries a member's applying is late that has
	// trouble; etcd refuses writes at 5,000.
	farBehind = 1000
)

// lookAtEtcd asks the members of etcd how they fare. It is true at once: nothing
// of it comes and goes with the cluster's work.
func (a *audit) lookAtEtcd() error {
	for _, m := range a.Store.Members(a.ctx, membersTimeout) {
		for _, f := range memberFindings(m) {
			a.suspect(f)
		}
	}
	return nil
}

func memberFindings(m store.Member) []task.Finding {
	var found []task.Finding
	add := func(k kind, format string, args ...any) {
		f := k.of(fmt.Sprintf("etcd at %s ", m.Endpoint) + fmt.Sprintf(format, args...))
		f.Keys, f.Count = []string{}, 0
		found = append(found, f)
	}
	if m.Err != nil {
		add(kindMember, "does not answer, or not well: %v", m.Err)
	}
	if m.Fault != "" {
		add(kindMember, "is not one that Carillon works with: %s", m.Fault)
	}
	if len(m.Alarms) > 0 {
		add(kindMember, "has raised the alarm %s", strings.Join(m.Alarms, ", "))
	}
	if behind := m.Index - m.Applied; behind > farBehind {
		add(kindMember, "is %d writes behind in applying what is agreed on", behind)
	}
	switch used := m.Used(); {
	case slices.Contains(m.Alarms, store.AlarmNoSpace): // said
	case used >= store.NearlyFull:
		add(kindMember, "is at %d %% of its quota", used)
	case used >= store.FillingUp:
		add(kindFilling, "is at %d %% of its quota", used)
	}
	return found
}
