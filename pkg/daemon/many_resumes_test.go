package daemon_test

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// Many tasks are resumed while all shards fire. Each resume changes shards/<k>/revised, which the owner's commits
// compare. This may slow a shard down but never stop it, and each tick after an acknowledged resume has an
// outcome.
//
// With CARILLON_SOAK, the test resumes 10,000 tasks of 256 shards and reports the lateness of runs.
//
// Verifies: G4
func TestManyResumes_LeaveFiringAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	shards, tasks := 4, 100
	if os.Getenv("CARILLON_SOAK") != "" {
		shards, tasks = 256, 10_000
	} else {
		t.Parallel()
	}
	c := newCluster(t, "--shards", fmt.Sprint(shards))
	c.start("n1")
	c.everySecond("n1", shards, nil)
	cl := c.client("n1")
	names := createPaused(t, cl, tasks)

	began := time.Now()
	resumeAll(t, cl, names)
	took := time.Since(began)

	late := latenessSince(t, cl, shards, began)
	t.Logf("%d resumes in %s (%.0f/s); runs meanwhile: %d, lateness p50 %d ms, p99 %d ms, max %d ms", tasks, took.Round(time.Millisecond),
		float64(tasks)/took.Seconds(), len(late), late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
	c.quiet("n1")
	c.judge(check.Options{Until: time.Now().Add(-time.Second), Ended: true})
}

// createPaused creates n paused tasks that would tick every minute, and returns their names.
func createPaused(t *testing.T, cl *client.Client, n int) []string {
	t.Helper()
	var names []string
	specs := func(yield func(task.Spec) bool) {
		for i := range n {
			s := task.Defaults()
			s.Name = fmt.Sprintf("paused-%05d", i)
			s.Schedule = task.Schedules{"@every 1m"}
			s.Action.Noop = &task.Noop{}
			s.Paused = true
			if !yield(s) {
				return
			}
		}
	}
	for r, err := range cl.Tasks.ApplyAll(t.Context(), specs, client.BatchOptions{CreateOnly: true}) {
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprintf("paused-%05d", r.Line-1))
	}
	return names
}

// resumeAll resumes tasks with sixteen concurrent callers, as fast as possible.
func resumeAll(t *testing.T, cl *client.Client, names []string) {
	t.Helper()
	next := make(chan string)
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for name := range next {
				if _, err := cl.Tasks.Resume(t.Context(), "default", name, 0); err != nil {
					t.Errorf("resume %s: %v", name, err)
				}
			}
		})
	}
	for _, name := range names {
		next <- name
	}
	close(next)
	callers.Wait()
}

// latenessSince returns the lateness in ms, in ascending order, of the runs of the tasks of everySecond whose
// ticks are after an instant.
func latenessSince(t *testing.T, cl *client.Client, tasks int, since time.Time) []int64 {
	t.Helper()
	var late []int64
	for i := range tasks {
		name := fmt.Sprintf("t%03d", i)
		eventually(t, func() error {
			runs, err := cl.Runs.ListByTask(t.Context(), "default", name, client.RunListOptions{Limit: 500})
			if err != nil {
				return err
			}
			var of []int64
			for _, r := range runs {
				if r.LatenessMS != nil && r.ScheduledTime.After(since) {
					of = append(of, *r.LatenessMS)
				}
			}
			if len(of) == 0 {
				return fmt.Errorf("no run of %s since %s", name, since.Format(time.TimeOnly))
			}
			late = append(late, of...)
			return nil
		})
	}
	slices.Sort(late)
	return late
}
