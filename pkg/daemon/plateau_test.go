package daemon_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// Under a steady load, after some time neither the memory and the goroutines of three nodes nor etcd's size grow.
// CARILLON_SOAK_RATE sets the runs per second, and CARILLON_SOAK the duration. Without them, the run is too short
// to check that, and only tests the measurement, with one node. The runs do nothing, but all of them are
// dispatched, started, ended and stored in the history, and every tick is checked.
func TestPlateau_OfMemoryAndEtcdUnderASteadyLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	rate, names := 10, []string{"n1"}
	if v := os.Getenv("CARILLON_SOAK_RATE"); v != "" {
		var err error
		if rate, err = strconv.Atoi(v); err != nil || rate < 1 {
			t.Fatalf("CARILLON_SOAK_RATE=%s: write how many runs each second", v)
		}
	}
	length := soak(t, 2*time.Second)
	flags := []string{"--lease-ttl", "5s"}
	if os.Getenv("CARILLON_SOAK") != "" {
		names = []string{"n1", "n2", "n3"}
	} else {
		t.Parallel() // mostly waits
		flags = append(flags, "--shards", "8")
	}
	c := newCluster(t, flags...)
	for _, n := range names {
		c.start(n)
	}
	c.everySecond("n1", rate, func(i int, s *task.Spec) {
		s.Schedule, s.History.Keep = task.Schedules{"@every 1s"}, task.Defaults().History.Keep
	})
	between := max(min(time.Minute, length/20), time.Second)
	all := newFigures(names)
	for start, next := time.Now(), between; next <= length; next += between {
		select {
		case <-time.After(time.Until(start.Add(next))):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
		if err := all.sample(c, time.Since(start)); err != nil {
			t.Fatal(err)
		}
	}
	c.quiet("n1")
	t.Logf("%d runs/s for %s\n%s", rate, length, all)
	if length < judgedFrom {
		t.Logf("too short to detect a plateau, which takes %s", judgedFrom)
	} else if err := all.plateau(); err != nil {
		t.Error(err)
	}
	r := c.judge(check.Options{Until: time.Now().Add(-time.Second), Ended: true})
	want := int64(1)
	if length >= judgedFrom { // the figures would not be comparable with those under another load
		want = int64(rate) * int64(length/time.Second) * 9 / 10
	}
	if r.Summary.Ended[task.Succeeded] < want {
		t.Errorf("%d runs succeeded; at least %d were due", r.Summary.Ended[task.Succeeded], want)
	}
}

// judgedFrom is the duration at which thirds can be compared. The embedded etcd compacts every minute, and must do
// so at least twice in each third.
const judgedFrom = 6 * time.Minute

// series contains the samples of one figure.
type series struct {
	name   string
	slack  float64 // growth that is not a leak, in absolute terms
	tide   bool    // it rises and falls with compactions, so its maximum counts
	values []float64
}

// plateau returns nil if the last third is at most a tenth plus slack above the second third. It compares medians,
// which single collections do not change, or maxima. The first third is for warming up.
func (s series) plateau() error {
	n := len(s.values)
	if n < 6 {
		return fmt.Errorf("%s: %d samples prove nothing", s.name, n)
	}
	of := median
	if s.tide {
		of = slices.Max[[]float64]
	}
	before, after := of(s.values[n/3:2*n/3]), of(s.values[2*n/3:])
	if most := before*1.1 + s.slack; after > most {
		return fmt.Errorf("%s grows: %.0f in the second third, %.0f in the last; at most %.0f is a plateau", s.name, before, after, most)
	}
	return nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// figures contains all samples of the nodes and of etcd.
type figures struct {
	nodes  []string
	at     []time.Duration
	series []series // resident MiB and goroutines of each node; size of etcd's file and the part in use, in MiB
	revs   []int64
}

func newFigures(nodes []string) *figures {
	f := &figures{nodes: nodes}
	for _, n := range nodes {
		f.series = append(f.series, series{name: n + " MiB", slack: 8}, series{name: n + " goroutines", slack: 50})
	}
	f.series = append(f.series, series{name: "etcd MiB", slack: 16, tide: true}, series{name: "in use MiB", slack: 16, tide: true})
	return f
}

func (f *figures) sample(c *cluster, at time.Duration) error {
	var values []float64
	for _, name := range f.nodes {
		p := c.nodes[name]
		rss, err := residentMiB(p.cmd.Process.Pid)
		if err != nil {
			return err
		}
		goroutines, err := p.metric("go_goroutines")
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		values = append(values, rss, goroutines)
	}
	status, err := c.etcd.Client().Status(c.t.Context(), c.etcd.Endpoint())
	if err != nil {
		return err
	}
	values = append(values, float64(status.DbSize)/(1<<20), float64(status.DbSizeInUse)/(1<<20))
	for i, v := range values {
		f.series[i].values = append(f.series[i].values, v)
	}
	f.at, f.revs = append(f.at, at), append(f.revs, status.Header.Revision)
	return nil
}

func (f *figures) plateau() (err error) {
	for _, s := range f.series {
		err = errors.Join(err, s.plateau())
	}
	return err
}

// String returns a table of all samples.
func (f *figures) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "after\t")
	for _, s := range f.series {
		fmt.Fprint(w, s.name, "\t")
	}
	fmt.Fprintln(w, "revision\t")
	for i, at := range f.at {
		fmt.Fprint(w, at.Round(time.Second), "\t")
		for _, s := range f.series {
			fmt.Fprintf(w, "%.0f\t", s.values[i])
		}
		fmt.Fprintf(w, "%d\t\n", f.revs[i])
	}
	w.Flush()
	return b.String()
}

func residentMiB(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmRSS:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("no VmRSS in /proc: the process has ended")
}

// metric returns the value of a metric without labels.
func (p *process) metric(name string) (float64, error) {
	res, err := http.Get(p.metricsURL())
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, fmt.Errorf("there is no metric %s: %s", name, res.Status)
}

func TestPlateau_KnowsALeakFromATide(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		tide  bool
		value func(i int) float64
		leaks bool
	}{
		{"steady", false, func(int) float64 { return 100 }, false},
		{"a warm-up", false, func(i int) float64 { return 100 + float64(min(i, 6)*20) }, false},
		{"a collection that is late", false, func(i int) float64 { return 100 + float64(i/17*(19-i)*40) }, false},
		{"compaction's tide", true, func(i int) float64 { return 100 + float64(i%5*40) }, false},
		{"a leak from the first run on", false, func(i int) float64 { return 10 + 10*float64(i) }, true},
		{"a leak under a tide", true, func(i int) float64 { return 100 + float64(i%5*40) + 10*float64(i) }, true},
		{"a leak that begins late", false, func(i int) float64 { return 100 + 30*float64(max(i-12, 0)) }, true},
	} {
		s := series{name: c.name, slack: 8, tide: c.tide}
		for i := range 20 {
			s.values = append(s.values, c.value(i))
		}
		if err := s.plateau(); (err != nil) != c.leaks {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := (series{values: make([]float64, 5)}).plateau(); err == nil {
		t.Error("five samples are taken for a proof")
	}
}
