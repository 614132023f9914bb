package process

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

// The group daemon, which every host has, stands for the group of administrators. Its number is 1.
//
// Verifies: G39
func TestAccount_HasTheGroupOfAdministratorsOnlyByPolicy(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can run processes as another user")
	}

	for _, tc := range []struct {
		what    string
		process task.Process
		gid     uint32
		groups  []uint32 // with a policy that names the group
		without []uint32 // without one; nil: refused
		refusal string
	}{
		{what: "another user", process: task.Process{User: "nobody"}, gid: 65534, groups: []uint32{65534}, without: []uint32{65534}},
		{what: "a member", process: task.Process{User: "daemon", Group: "nogroup"}, gid: 65534, groups: []uint32{1}, without: []uint32{}},
		{what: "root", process: task.Process{User: "root", Groups: []string{"sys"}}, gid: 0, groups: []uint32{3}, without: []uint32{3}},
		{what: "a primary group", process: task.Process{User: "daemon"}, gid: 1, groups: []uint32{1}, refusal: "group: the primary group of user daemon is daemon"},
		{what: "a group that the task names", process: task.Process{User: "nobody", Group: "daemon"}, gid: 1, groups: []uint32{65534}, refusal: "group: daemon"},
		{what: "its number", process: task.Process{User: "nobody", Group: "1"}, gid: 1, groups: []uint32{65534}, refusal: "group: daemon"},
		{what: "groups that the task names", process: task.Process{User: "nobody", Groups: []string{"sys", "daemon"}}, gid: 65534, groups: []uint32{3, 1}, refusal: "groups: daemon"},
		{what: "their numbers", process: task.Process{User: "root", Groups: []string{"1"}}, gid: 0, groups: []uint32{1}, refusal: "groups: daemon"},
	} {
		l := newLauncher(t, spool.Config{Dir: openTemp(t)})
		l.adminGroup = "daemon"

		for _, named := range [][]string{{"daemon"}, {"1"}} {
			l.policy = func() (*policy.Policy, error) { return &policy.Policy{Groups: named}, nil }
			if a, err := l.account(&tc.process); err != nil || a.credential.Gid != tc.gid || !slices.Equal(a.credential.Groups, tc.groups) {
				t.Errorf("%s, policy %v: %+v, %v; want %d %v", tc.what, named, a.credential, err, tc.gid, tc.groups)
			}
		}

		for what, p := range map[string]Policy{
			"no policy": nil, "a policy without groups": func() (*policy.Policy, error) { return &policy.Policy{}, nil },
			"a policy of other groups": func() (*policy.Policy, error) { return &policy.Policy{Groups: []string{"sys"}}, nil },
		} {
			l.policy = p
			a, err := l.account(&tc.process)
			if reason, ok := isRefusal(err); tc.refusal != "" {
				if !ok || reason != task.ReasonPolicy || !strings.HasPrefix(err.Error(), tc.refusal+":") {
					t.Errorf("%s, %s: %+v, %v; want %q", tc.what, what, a.credential, err, tc.refusal)
				}
			} else if err != nil || a.credential.Gid != tc.gid || !slices.Equal(a.credential.Groups, tc.without) {
				t.Errorf("%s, %s: %+v, %v; want %d %v", tc.what, what, a.credential, err, tc.gid, tc.without)
			}
		}
	}
}

// A policy that cannot be read allows nothing.
//
// Verifies: G39
func TestAccount_WithoutAReadablePolicyIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can run processes as another user")
	}

	l := newLauncher(t, spool.Config{Dir: openTemp(t)})
	l.adminGroup = "daemon"
	l.policy = func() (*policy.Policy, error) { return nil, errors.New("broken") }

	if _, err := l.account(&task.Process{User: "daemon"}); !errors.Is(err, errNoPolicy) {
		t.Errorf("got %v", err)
	}
}
