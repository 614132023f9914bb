package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// membersTimeout is how long a member of etcd may take to answer.
	membersTimeout = 2 * time.Second
	// maxUnapplied is how many committed entries a healthy member may still have to apply. etcd rejects writes at
	// 5,000.
	maxUnapplied = 1000
)

// memberJudge judges the members of etcd.
type memberJudge struct{ judge }

// checkMembers requests the status of etcd's members. The second read does not repeat this, because the cluster's
// own work does not change it.
func (j *memberJudge) checkMembers(ctx context.Context) error {
	for _, m := range j.reader.store.Members(ctx, membersTimeout) {
		for _, f := range memberFindings(m) {
			j.addSuspect(f)
		}
	}

	return nil
}

// memberFindings returns what is wrong with a member.
func memberFindings(m etcdadmin.Member) []task.Finding {
	var found []task.Finding
	add := func(k kind, format string, args ...any) {
		f := k.newFinding(fmt.Sprintf("etcd at %s ", m.Endpoint) + fmt.Sprintf(format, args...))
		f.Keys, f.Count = []string{}, 0
		found = append(found, f)
	}

	if m.Err != nil {
		add(kindMember, "does not respond correctly: %v", m.Err)
	}

	if m.Fault != "" {
		add(kindMember, "is not supported by Carillon: %s", m.Fault)
	}

	if len(m.Alarms) > 0 {
		add(kindMember, "has raised the alarm %s", strings.Join(m.Alarms, ", "))
	}

	if unapplied := m.Index - m.Applied; unapplied > maxUnapplied {
		add(kindMember, "has not applied %d committed writes", unapplied)
	}

	switch used := m.Used(); {
	case slices.Contains(m.Alarms, etcdadmin.AlarmNoSpace): // the alarm is already a finding
	case used >= etcdadmin.NearlyFull:
		add(kindMember, "is at %d %% of its quota", used)
	case used >= etcdadmin.FillingUp:
		add(kindFilling, "is at %d %% of its quota", used)
	}

	return found
}
