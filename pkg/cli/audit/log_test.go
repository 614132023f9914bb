package audit

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// The line of a change of an access record says what was granted to whom, and what was revoked.
func TestObjectText_SaysWhatWasGranted(t *testing.T) {
	until := task.At(time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC))
	grant := task.Binding{Name: "weekly-report", Role: "admin", RoleUID: "builtin", Subjects: []string{"user:mallory", "user:ann"}, Cluster: true, UpdatedBy: task.NewActor("user:ann")}
	limited := grant
	limited.Cluster, limited.Namespaces, limited.Until = false, []string{"alpha", "team-*"}, until
	games := task.Namespace{Name: "alpha", RunAs: []string{"games"}, Shell: true}
	root := task.Namespace{Name: "alpha", RunAs: []string{"games", "root"}}
	role := task.Role{Name: "deployer", Rules: []task.Rule{{Verbs: []string{"update"}, Objects: []string{"tasks"}, Labels: map[string]string{"app": "web"}}}}

	for want, o := range map[string]task.AuditObject{
		"binding weekly-report: cluster, role admin, subjects user:mallory, user:ann":                               {Kind: "binding", Name: "weekly-report", Change: "put", Changes: task.AccessChanges(nil, &grant)},
		"binding weekly-report deleted: cluster, role admin, subjects user:mallory, user:ann":                       {Kind: "binding", Name: "weekly-report", Change: "delete", Changes: task.AccessChanges(&grant, nil)},
		"binding weekly-report: cluster → none, namespaces alpha, team-*, until 2026-12-01T08:00:00.000Z":           {Kind: "binding", Name: "weekly-report", Change: "put", Changes: task.AccessChanges(&grant, &limited)},
		"namespace alpha: run_as games → games, root, shell → none":                                                 {Kind: "namespace", Name: "alpha", Change: "put", Changes: task.AccessChanges(&games, &root)},
		"role deployer: rules update:tasks:app=web":                                                                 {Kind: "role", Name: "deployer", Change: "put", Changes: task.AccessChanges(nil, &role)},
		"run ops/a@r1 (args, env.LD_PRELOAD)":                                                                       {Kind: "run", Namespace: "ops", Name: "a", Run: "r1", Change: "put", Fields: []string{"args", "env.LD_PRELOAD"}},
		"token t1: scope.namespaces billing, scope.role viewer, subject service:ci, until 2026-12-01T08:00:00.000Z": {Kind: "token", Name: "t1", Change: "put", Changes: task.AccessChanges(nil, &task.Token{ID: "t1", Subject: "service:ci", Until: until, Scope: &task.TokenScope{Role: "viewer", RoleUID: "builtin", Namespaces: []string{"billing"}}})},
		"subject user:ann": {Kind: "subject", Name: "user:ann", Change: "put"},
	} {
		// As it comes from the server.
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var decoded task.AuditObject
		if err := json.Unmarshal(b, &decoded); err != nil {
			t.Fatal(err)
		}

		if got := objectText(decoded); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
