package daemon_test

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/check"
)

// soak is how long a long test runs: CARILLON_SOAK, or what CI has time for.
func soak(t *testing.T, short time.Duration) time.Duration {
	t.Helper()
	v := os.Getenv("CARILLON_SOAK")
	if v == "" {
		return short
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("CARILLON_SOAK: %v", err)
	}
	return d
}

// Three nodes share many tasks that tick each second. One is killed and started
// again, one is asked to stop: every tick has exactly one outcome, by what etcd
// holds.
func TestSoak_EveryTickHasOneOutcomeWhileNodesComeAndGo(t *testing.T) {
	length, tasks := soak(t, 24*time.Second), 100
	if os.Getenv("CARILLON_SOAK") != "" {
		tasks = 300
	}
	c := newCluster(t, "--shards", "32", "--lease-ttl", "3s")
	for _, n := range []string{"n1", "n2", "n3"} {
		c.start(n)
	}
	c.everySecond("n1", tasks, nil)
	step := length / 4
	pause := func() { // load goes on meanwhile
		select {
		case <-time.After(step):
		case <-t.Context().Done():
		}
	}
	pause()
	c.nodes["n2"].signal(syscall.SIGKILL)
	pause()
	c.start("n2")
	pause()
	c.nodes["n3"].signal(syscall.SIGTERM)
	pause()
	c.quiet("n1")
	until := time.Now().Add(-time.Second)
	r := c.judge(check.Options{Until: until, Ended: true})
	if want := int64(tasks) * int64(length/time.Second) * 9 / 10; r.Summary.Ticks < want {
		t.Errorf("%d ticks are decided; at least %d were due", r.Summary.Ticks, want)
	}
}
