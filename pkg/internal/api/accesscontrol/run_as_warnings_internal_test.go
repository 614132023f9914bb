package accesscontrol

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestWarnRootUsers(t *testing.T) {
	groups := map[string][]string{"backup": {"backup", "carillon"}, "ci": {"ci", "docker", "adm", "carillon"}, "www-data": {"www-data", "adm"}}

	got := strings.Join(task.WarningTexts(warnRootUsers(t.Context(), []string{"www-data", "backup", "ci", "*", "nobody-else"}, func(name string) []string { return groups[name] })), "\n")
	for _, want := range []string{`user "backup" is in the group carillon, whose members administer the cluster`, `user "ci" is in the group docker, carillon, so tasks of the namespace can become root`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
	if strings.Count(got, "\n") != 1 {
		t.Errorf("not two warnings:\n%s", got)
	}
}

func TestWarnRootUsers_DoNotWaitForAUserDatabaseThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		if got := warnRootUsers(t.Context(), []string{"a", "b"}, func(string) []string { <-answers; return []string{"root"} }); got != nil {
			t.Errorf("got %v", got)
		}
		close(answers)
	})
}
