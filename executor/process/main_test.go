package process

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/guardian/guardiantest"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/executor/status"
	"github.com/carillonhq/carillon/executor/workdir"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestMain also runs the test binary as other processes.
func TestMain(m *testing.M) {
	guardiantest.Main()

	switch os.Getenv("EXECUTOR_TEST_ROLE") {
	case "daemon":
		if err := playDaemon(); err != nil {
			fmt.Fprintln(os.Stderr, "daemon:", err)
			os.Exit(1)
		}
	case "leaseholder":
		if err := playLeaseholder(); err != nil {
			fmt.Fprintln(os.Stderr, "leaseholder:", err)
			os.Exit(1)
		}
	default:
		leaktest.Main(m)
	}
}

// playDaemon runs shell lines, given as JSON in its last argument, under a guardian until it is killed. It writes
// one line for each started attempt. The ids of the attempts are unique: a guardian kills all processes with the
// mark of its attempts, including those of other daemons and users.
func playDaemon() error {
	dir := os.Getenv("EXECUTOR_TEST_DIR")
	var lines []string
	if err := json.Unmarshal([]byte(os.Getenv("EXECUTOR_TEST_LINES")), &lines); err != nil {
		return err
	}

	ctx := context.Background()
	groups, orphans, err := playGroups(ctx, dir)
	if err != nil {
		return err
	}

	var g *guardian.Client
	if os.Getenv("EXECUTOR_TEST_UNGUARDED") == "" {
		cfg := guardiantest.Config(dir)
		cfg.Groups, cfg.Orphans = groups.Roots(), orphans
		g = guardian.NewClient(cfg)
		go g.Run(ctx)
	}

	s, err := newSpawner()
	if err != nil {
		return err
	}

	s.orphans = orphans
	go s.serveRequests(ctx)

	places := workdir.NewPool(filepath.Join(dir, "rooms"), dir, "i1", nil)
	if err := places.Open(); err != nil {
		return err
	}

	l := Runner{workdirs: places, statuses: status.NewMonitor(nil), spawner: s, stuck: newStuckStarts(nil), spool: spool.New(spool.Config{Dir: dir}), guardian: g, without: defaultAccount{own: ownAccount()}, log: zap.NewNop(),
		groups: groups, orphans: orphans}
	go silentWhenAsked(dir, g)

	for i, line := range lines {
		prep, err := l.prepareAttempt(executortest.Assigned(fmt.Sprintf("run%d-%d", i, os.Getpid()), &task.Process{Shell: line, Scratch: strings.Contains(line, "SCRATCH")}), int64(100+i))
		if err != nil {
			return err
		}

		prep.guarded.Session, prep.guarded.Silence = 1, maxSilence
		if strings.Contains(line, "held") { // it stays held, before it changes its user
			prep.bound.steps = append(prep.bound.steps, step{"held", func(pid int) error {
				err := os.WriteFile(filepath.Join(dir, "held"), fmt.Appendln(nil, pid), 0o600)
				fmt.Println("held", i)
				if err == nil {
					select {}
				}

				return err
			}})
		}

		prep.onStarted = func(time.Time) { fmt.Println("started", i) }
		o := NewOrders()
		prep.onPause = func(PauseState) { _ = os.WriteFile(filepath.Join(dir, fmt.Sprint("paused.", i)), nil, 0o600) }
		go pauseWhenAsked(filepath.Join(dir, "pause"), o)
		go l.runPrepared(prep, o)
	}

	select {}
}

func pauseWhenAsked(file string, o *Orders) {
	for {
		if _, err := os.Stat(file); err == nil {
			o.SetPaused(true)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// maxSilence is how long the guardian lets an attempt live whose session is silent.
const maxSilence = 20 * time.Second

// silentWhenAsked makes the session silent when a file appears, which contains the new maximum silence. The
// guardian receives that, too.
func silentWhenAsked(dir string, g *guardian.Client) {
	for {
		b, _ := os.ReadFile(filepath.Join(dir, "silence"))
		if d, err := time.ParseDuration(string(b)); err == nil {
			g.SetRenewal(1, proctree.BootTime()+d-maxSilence)
			_ = os.WriteFile(filepath.Join(dir, "silent"), nil, 0o600)
			return
		}

		time.Sleep(5 * time.Millisecond)
	}
}

// playGroups returns what the daemon uses to find processes: control groups if the host has any, unless
// EXECUTOR_TEST_CGROUP is off.
func playGroups(ctx context.Context, dir string) (*cgroup.Groups, *proctree.Orphans, error) {
	groups, err := cgroup.Open(cgroup.Config{
		Setting: cmp.Or(os.Getenv("EXECUTOR_TEST_CGROUP"), cgroup.Auto), Node: "test", Instance: fmt.Sprint(os.Getpid()), Record: filepath.Join(dir, "cgroups"),
	})
	if err != nil || groups.Any() {
		return groups, nil, err
	}

	orphans := proctree.NewOrphans()
	go orphans.Run(ctx)

	return groups, orphans, proctree.BecomeSubreaper()
}

// freezePatiently freezes a tree and retries, because the machine may be busy.
func freezePatiently(tr *proctree.Tree) error {
	err := tr.Freeze()
	for end := time.Now().Add(executortest.Patience); err != nil && time.Now().Before(end); {
		err = tr.Freeze()
	}
	return err
}

// value returns the value of a counter or a gauge.
func value(m prometheus.Metric) float64 {
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		panic(err)
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}
