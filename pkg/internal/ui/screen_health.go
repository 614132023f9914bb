package ui

import (
	"context"
	"fmt"
	"html/template"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// healthScreen shows the health of the cluster and its etcd, as "carillon cluster status" does.
func healthScreen() Screen {
	return Screen{
		Name: "health", Pattern: "/ui/health", Nav: "health",
		Title:   func(*View) string { return "Health" },
		Load:    loadHealth,
		Command: func(*View) []string { return []string{"carillon", "cluster", "status"} },
		Parts:   []Part{{Name: "health"}},
		Every:   3 * time.Second, // each rendering asks all members of etcd
	}
}

// healthPage is what the screen shows.
type healthPage struct {
	Status   client.ClusterStatus
	Problems []overview.Group
	Calm     bool // none of them needs a human
	Facts    []setting
	Members  []memberRow
}

// memberRow is a member of etcd.
type memberRow struct {
	client.EtcdMember
	Role  string
	Look  string // whose looks the role has
	Size  string
	InUse string
	Trail int64 // how many entries of its log it has not applied yet
}

func loadHealth(ctx context.Context, r *Request) (any, error) {
	var s client.ClusterStatus
	var err error
	var board *task.Board
	callgroup.Run(
		func() { s, err = r.API.Cluster.Status(ctx) },
		func() {
			if b, err := r.API.Board.Get(ctx, boardOptions); err == nil {
				board = &b
			}
		},
	)
	if err != nil {
		return nil, err
	}

	p := healthPage{Status: s, Problems: overview.OfStatus(s, board), Facts: healthFacts(s)}
	p.Calm = overview.Attention(p.Problems) == 0
	for _, m := range s.Etcd {
		p.Members = append(p.Members, memberRowOf(m))
	}

	return p, nil
}

// memberRowOf returns a member as the page shows it.
func memberRowOf(m client.EtcdMember) memberRow {
	row := memberRow{EtcdMember: m, Role: "member", Look: "ok", Size: wording.MemberSize(m)}
	switch {
	case m.Leader:
		row.Role = "leader"
	case m.Learner:
		row.Role = "learner"
	}

	switch {
	case m.Error != "":
		row.Role, row.Look = "away", string(task.Lost)
	case len(m.Alarms) > 0 || m.Fault != "":
		row.Look = string(task.Failed)
	}

	if m.DBInUse > 0 {
		row.InUse = wording.Bytes(m.DBInUse)
	}
	row.Trail = max(m.Index-m.Applied, 0)

	return row
}

// healthFacts are further facts in the words of the CLI.
func healthFacts(s client.ClusterStatus) []setting {
	var list settings
	list.addCode("Cluster", s.ID)
	if s.Epoch > 1 {
		list.add("Epoch", fmt.Sprint(s.Epoch))
	}
	if s.ChangedBy != nil {
		words := s.ChangedAt.UTC().Format("2006-01-02 15:04 UTC") + " by " + s.ChangedBy.String()
		if s.Change != "" {
			words += ": " + s.Change
		}
		list.add("Changed", words)
	}

	if oldest := s.Revisions.Oldest; oldest > 0 { // the newest one changes all the time
		list.add("Revisions", fmt.Sprintf("kept from %d on; events go back as far", oldest))
	}
	for _, fact := range wording.ClusterFacts(s) {
		list.add(fact.Name, fact.Value)
	}

	return list
}

// SizeMeter shows the size of a database as a part of its quota.
func (*View) SizeMeter(size, quota int64) template.HTML { return meter(int(size>>10), int(quota>>10)) }
