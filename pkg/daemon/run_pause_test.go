package daemon_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// pausesWhileFollowed starts a run on the first node, and pauses, resumes and cancels it from the second, while
// its output is followed from the third.
func (c *cluster) pausesWhileFollowed() {
	t := c.t
	t.Helper()
	steady := spec("steady", `trap 'echo bye; exit 7' INT; n=0; while :; do n=$((n+1)); echo line $n; sleep 0.02; done`)
	steady.Target.Selector, steady.KillSignal = "node = n1", "SIGINT"
	c.create("n1", steady)
	run := c.trigger("n1", "steady")
	follows := c.carillon("n3", "run", "logs", run.ID, "-f")
	grows := func() {
		t.Helper()
		from := len(follows.out.String())
		eventually(t, func() error {
			if got := follows.out.String(); len(got) <= from {
				return fmt.Errorf("the log does not go on behind %q; it said: %s", got, &follows.errs)
			}
			return nil
		})
	}
	do := func(words ...string) {
		t.Helper()
		did := c.carillon("n2", append(append([]string{"run"}, words...), run.ID)...)
		did.ends(0, "")
		if got := did.out.String(); !strings.HasPrefix(got, words[0]) {
			t.Errorf("%v said %q and %q", words, got, &did.errs)
		}
	}
	still := func() {
		t.Helper()
		time.Sleep(500 * time.Millisecond) // time for earlier output to arrive
		eventually(t, func() error {       // on some machines, output is still arriving
			before := follows.out.String()
			time.Sleep(time.Second) // time for an incorrect process to print fifty times
			if after := follows.out.String(); after != before {
				return fmt.Errorf("paused, it printed %q", after[len(before):])
			}
			return nil
		})
	}
	grows()
	do("pause")
	still()
	if got := c.until("n3", "steady", run.ID, task.Paused); got.PausedAt.IsZero() || got.PausedBy.Name() != "service:bootstrap" {
		t.Errorf("paused, it is %+v", got)
	}
	do("resume")
	grows()
	do("pause")
	still()
	c.carillon("n2", "run", "cancel", run.ID).ends(0, "")
	follows.ends(0, "⊘ cancelled · steady")
	if got := follows.out.String(); !strings.HasSuffix(got, "bye\n") {
		t.Errorf("its last words are missing: %q", got[max(0, len(got)-40):])
	}
	if got := c.until("n3", "steady", run.ID, task.Cancelled); got.ExitCode == nil || *got.ExitCode != 7 || got.PausedMS < 1000 || got.Node != "n1" {
		t.Errorf("cancelled, it is %+v", got)
	}
}
