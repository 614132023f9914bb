package chaos_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// A cluster of daemons on a real etcd of three members keeps its guarantees under all faults. In CI a few quick
// faults are injected. CARILLON_CHAOS_DURATION requests a long run, CARILLON_CHAOS_SEED another seed,
// CARILLON_CHAOS_FAULTS only some kinds of faults, and CARILLON_CHAOS_HOLD faults of that duration.
//
// Verifies: G1-G14, G16-G18, G20, G27-G29, G31, G57-G59, G63-G66
func TestChaos_PromisesHold(t *testing.T) {
	if testing.Short() {
		t.Skip("a cluster of whole daemons: make test-cluster, make chaos")
	}

	began := time.Now()
	length := duration(t, "CARILLON_CHAOS_DURATION")
	faults := chosen(t, os.Getenv("CARILLON_CHAOS_FAULTS"), length > 0)

	s := size{nodes: 3, shards: 8, load: .2}
	if length > 0 {
		s = size{nodes: 4, shards: 16, load: 1, smallDisk: true, long: true}
	}

	w := newWorld(t, seed(t), s)
	w.say("seed %d, %d nodes, %s: in %s", w.seed, s.nodes, w.mark, w.dir)
	calls := w.call()
	done, off := w.run(faults, length)
	v := w.judge(calls)
	sum := w.summarize(done, off, v, time.Since(began))
	t.Logf("\n%s\n%s", v.report.String(), sum)

	if path := os.Getenv("CARILLON_CHAOS_REPORT"); path != "" {
		w.must(sum.save(path))
	}

	if sum.Faults == 0 {
		t.Error("no fault counts: the run proves nothing")
	}

	if t.Failed() {
		for _, in := range done {
			t.Log(in)
		}
	}
}

func duration(t *testing.T, name string) time.Duration {
	v := os.Getenv(name)
	if v == "" {
		return 0
	}

	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		t.Fatalf("%s=%s: not a duration such as 20m", name, v)
	}

	return d
}

func seed(t *testing.T) uint64 {
	v := os.Getenv("CARILLON_CHAOS_SEED")
	if v == "" {
		return 1
	}

	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("CARILLON_CHAOS_SEED=%s: not a whole number", v)
	}

	return n
}

// chosen returns the faults with the given names, separated by commas. Without names, it returns all, or those that
// are quick.
func chosen(t *testing.T, names string, all bool) (some []*fault) {
	for _, f := range allFaults() {
		if names == "" && (all || f.quick) || slices.Contains(strings.Split(names, ","), f.name) {
			some = append(some, f)
		}
	}

	if d := duration(t, "CARILLON_CHAOS_HOLD"); d > 0 {
		for _, f := range some {
			f.hold = [2]time.Duration{d, d}
		}
	}

	if len(some) == 0 {
		for _, f := range allFaults() {
			t.Logf("%-26s %-9s %s", f.name, f.group, f.what)
		}

		t.Fatalf("CARILLON_CHAOS_FAULTS=%s: no such fault; these are all", names)
	}

	return some
}

// asDaemon is an environment variable that makes the test binary act as the carillon program, in an environment
// that the test controls. Its value is the path of the daemon's control file.
const asDaemon = "CHAOS_CONTROL"

func TestMain(m *testing.M) {
	control := os.Getenv(asDaemon)

	if mark := os.Getenv(asReaper); mark != "" {
		reap(mark, os.Getenv(asReaper+"_MOUNT"))
		return
	}

	if control == "" {
		go forkAll()
		os.Exit(m.Run())
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	root := &cobra.Command{Use: "carillon", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(environment(ctx, control).Commands()...)

	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// asReaper is an environment variable that makes the test binary a reaper of a run's processes. Its value is the
// mark of the run.
const asReaper = "CHAOS_REAPER"

// startReaper starts a process that ends all others of the run when the test has ended, however it ended. Guardians
// outlive their daemons on purpose.
func (w *world) startReaper() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}

	r := exec.Command(exe)
	r.Env = append(w.environ(), asReaper+"="+w.mark, asReaper+"_MOUNT="+w.mountPoint(), markName+"=")
	r.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	hold, err := r.StdinPipe()
	if err == nil {
		err = r.Start()
	}

	if err != nil {
		return fmt.Errorf("start the reaper: %w", err)
	}

	w.closers = append(w.closers, func() { hold.Close(); _ = r.Wait() })

	return nil
}

// reap waits for the end of the test, which holds the other end of standard input, and then removes everything of
// its run.
func reap(mark, mount string) {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	_, _ = io.Copy(io.Discard, os.Stdin)
	sweep(mark)
	_ = unix.Unmount(mount, unix.MNT_DETACH) // it may not exist
}
