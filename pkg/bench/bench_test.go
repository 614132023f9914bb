package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Agents, their guardians and the children of benchmarks are started from this program with such an argument.
// Without this, the test binary would run all tests again in each of them.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"agent", "guardian"}, os.Args[1]) {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}

	_ = flag.Set("test.parallel", "4") // benchmarks mostly wait for ticks and leases
	leaktest.Main(m)
}

// command executes carillon-bench, and returns its error before Main reports it.
func command(ctx context.Context, t *testing.T, args ...string) (string, error) {
	t.Helper()

	var out, progress bytes.Buffer
	root := newRootCommand()
	root.SetOut(&out)
	root.SetErr(&progress)
	root.SetArgs(append(args, "--temp-dir", t.TempDir()))

	err := root.ExecuteContext(ctx)
	if err != nil {
		t.Logf("%s", progress.String())
	}

	return out.String(), err
}

func TestBench_VerifiesWhatItMeasures(t *testing.T) {
	quick := []string{"--shards", "8", "--duration", "300ms", "--warmup", "100ms"}
	limited := append([]string{"--limit-duration", "100ms", "--audit"}, quick...)
	for _, c := range []struct {
		name    string
		args    []string
		results []string // with a verdict
		limits  []string
		quick   bool // also in make test, and with the race detector
	}{
		{"fire", append([]string{"fire", "--tasks", "200"}, limited...), []string{"fire"}, []string{limitCommit, limitNested}, false},
		{"fire over grpc", append([]string{"fire", "--tasks", "200", "--transport", "grpc", "--limit-duration", "0s"}, quick...),
			[]string{"fire"}, nil, true},
		{"lifecycle", append([]string{"lifecycle", "--tasks", "200", "--overlap", "allow", "--keep", "3"}, limited...),
			[]string{"lifecycle"}, []string{limitCycle}, false},
		{"lifecycle with ticks that are skipped", append([]string{"lifecycle", "--tasks", "50", "--outstanding", "50", "--limit-duration", "0s"}, quick...),
			[]string{"lifecycle"}, nil, false},
		{"process", append([]string{"process", "--tasks", "50", "--outstanding", "20", "--slots", "2"}, limited...),
			[]string{"process"}, []string{limitSpawn}, false},
		{"http", append([]string{"http", "--tasks", "50", "--outstanding", "20"}, limited...),
			[]string{"http"}, []string{limitHTTP, httpAttempts}, false},
		{"herd", []string{"herd", "--tasks", "300", "--shards", "8", "--every", "1s", "--rounds", "1", "--audit"},
			[]string{"herd/claim", "herd/start"}, nil, true},
		{"latency", append([]string{"latency", "--rate", "50", "--audit"}, quick...), []string{"latency/claim", "latency/start"}, nil, true},
		{"create", append([]string{"create", "--callers", "8", "--limit-duration", "100ms"}, quick...),
			[]string{"create/bulk", "create/store", "create/api"}, []string{limitCreateBulk, limitCreate}, true},
		{"scale", append([]string{"scale", "--tasks", "600", "--base", "200", "--rate", "100", "--audit"}, quick...), []string{"scale", "scale/base"}, nil, false},
		{"failover", []string{"failover", "--tasks", "300", "--rate", "50", "--shards", "16", "--duration", "50ms", "--lease-ttl", "2s", "--audit"},
			[]string{"failover/steady", "failover/join", "failover/drain", "failover/rolling_restart", "failover/kill", "failover/kill_leader"}, nil, false},
		{"list", []string{"list", "--tasks", "300", "--rate", "50", "--rounds", "1", "--shards", "16", "--duration", "300ms", "--lease-ttl", "2s"}, listResults(), nil, false},
		{"chain", []string{"chain", "--rate", "5", "--ends", "300", "--shards", "16", "--lease-ttl", "2s", "--kill", "--every", "3s", "--audit"}, []string{"chain", "chain/commit"}, nil, false},
		{"fan", []string{"chain", "--fan", "20", "--ends", "60", "--shards", "16", "--lease-ttl", "2s"}, []string{"chain/fan", "chain/commit"}, nil, false},
		{"limit", []string{"limit", "--duration", "50ms"}, nil, []string{limitPut, limitTextbook, limitNested, limitCommit, limitCycle}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && !c.quick {
				t.Skip("make test-cluster")
			}

			t.Parallel()
			out, err := command(t.Context(), t, append(c.args, "-o", "json")...)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}

			var r Report
			d := json.NewDecoder(strings.NewReader(out))
			d.DisallowUnknownFields()

			if err := d.Decode(&r); err != nil {
				t.Fatal(err)
			}

			checkReport(t, r, c.results, c.limits)

			if c.name == "scale" {
				checkScale(t, r.Results)
			}
		})
	}
}

func checkReport(t *testing.T, r Report, results, limits []string) {
	t.Helper()

	if r.Machine.CPU == "" || r.Machine.Cores < 1 || r.Machine.OS == "" || r.Versions.Go == "" || !strings.HasPrefix(r.Versions.Etcd, "3.") {
		t.Errorf("machine %+v, versions %+v", r.Machine, r.Versions)
	}

	if !strings.HasPrefix(r.Command, "carillon-bench ") {
		t.Errorf("the command is %q", r.Command)
	}

	var names []string
	for _, res := range r.Results {
		names = append(names, res.Name)
		verdict := res.Verified != nil && *res.Verified
		if slices.Contains(results, res.Name) && !verdict {
			t.Errorf("%s is not verified: %v", res.Name, res.Faults)
		}

		if slices.Contains(limits, res.Name) && (res.Verified != nil || res.RatePerS <= 0) {
			t.Errorf("%s: %g/s, verified %v", res.Name, res.RatePerS, res.Verified)
		}

		if !strings.Contains(res.Name, "/") && len(limits) > 0 && res.RatePerS > 0 && (res.LimitPerS <= 0 || res.Ratio <= 0 || res.LimitIs != limits[0]) {
			t.Errorf("%s: limit %g/s, ratio %g, of %s", res.Name, res.LimitPerS, res.Ratio, res.LimitIs)
		}
	}

	if want := slices.Concat(results, limits); !slices.Equal(names, want) {
		t.Errorf("results are %v, want %v", names, want)
	}
}

// listResults are the names of the results of list.
func listResults() []string {
	all := []string{"list/no_questions", "list/askers_1", "list/askers_8"}
	for _, g := range newListGroups(listPopulation{}) {
		all = append(all, "list/"+g.name())
	}

	return append(all, "list/overload", "list/overload_watched", "list/overload_watched_by_other", "list/takeover")
}

func checkScale(t *testing.T, results []Result) {
	t.Helper()

	for _, res := range results {
		if res.Count == 0 || res.CPUMicros <= 0 || res.LoadMS <= 0 || res.MemoryPer == nil || res.MemoryAsIs == nil || res.HeapPer == nil || *res.HeapPer == 0 || res.IdleCPU == nil {
			t.Errorf("%s lacks a figure: %+v", res.Name, res)
		}

		if (res.CostRatio > 0) != (res.Name == "scale") {
			t.Errorf("%s costs %g × that of few", res.Name, res.CostRatio)
		}
	}
}

func TestBench_LeavesOtherKeysAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("two benchmarks: make test-cluster")
	}

	etcd := kvtest.StartServer(t)
	other := record.DefaultPrefix + "/tasks/default/backup"
	if _, err := etcd.Client().Put(t.Context(), other, "theirs"); err != nil {
		t.Fatal(err)
	}

	args := []string{"lifecycle", "--etcd-endpoints", etcd.Endpoint(), "--shards", "4", "--tasks", "50", "--warmup", "0s", "--limit-duration", "100ms"}
	if out, err := command(t.Context(), t, append(args, "--duration", "200ms")...); err != nil || !strings.Contains(out, "external") {
		t.Errorf("%v\n%s", err, out)
	}

	onlyKey(t, etcd.Client(), other)

	// It also cleans up when it is interrupted.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	go func() {
		for n := int64(0); n < 60 && ctx.Err() == nil; { // as soon as there is something to clean up
			if res, err := etcd.Client().Get(ctx, "/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err == nil {
				n = res.Count
			}
		}

		cancel()
	}()

	if _, err := command(ctx, t, append(args, "--duration", "1m")...); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}

	onlyKey(t, etcd.Client(), other)
}

// If it never reached etcd, the error is only that.
func TestBench_DeletesNothingWhereItWasNot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()

	_, err := command(ctx, t, "fire", "--etcd-endpoints", "http://127.0.0.1:1")
	if err == nil || strings.Contains(err.Error(), "delete") {
		t.Errorf("got %v", err)
	}
}

func onlyKey(t *testing.T, c *kv.Client, key string) {
	t.Helper()
	res, err := c.Get(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range res.Kvs {
		if string(e.Key) != key {
			t.Errorf("%s is left", e.Key)
		}
	}

	if len(res.Kvs) == 0 {
		t.Errorf("%s is gone", key)
	}
}

func TestBench_RefusesWhatMakesNoSense(t *testing.T) {
	for _, c := range []struct {
		flag string
		args []string
	}{
		{"--warmup", []string{"fire", "--warmup", "-1s"}},
		{"--limit-duration", []string{"create", "--limit-duration", "-1s"}},
		{"--overlap", []string{"lifecycle", "--overlap", "queue"}},
		{"--every", []string{"herd", "--every", "1500ms"}},
		{"--tasks", []string{"fire", "--tasks", "0"}},
		{"--rate", []string{"failover", "--tasks", "10", "--rate", "11"}},
		{"--rate", []string{"list", "--tasks", "10", "--rate", "11"}},
		{"--output", []string{"fire", "-o", "yaml"}},
	} {
		var e *task.Error
		if _, err := command(t.Context(), t, c.args...); !errors.As(err, &e) || e.Field != c.flag {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}

func TestMain_ReportsErrorsLikeCarillon(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string // in the error
	}{
		{[]string{"limit", "-o", "yaml"}, 2, "use table or json"},
		{[]string{"fire", "--duration", "1 sec"}, 2, `--duration: "1 sec" is not a duration; did you mean "1s"?`},
		{[]string{"http", "--duration", "x"}, 2, "--duration: "},
		{[]string{"fire", "--durations", "1s"}, 2, "did you mean: --duration"},
		{[]string{"process", "--", "/no/such/program"}, 2, "is not a program"},
		{[]string{"create", "--callers", "0"}, 2, "--callers: "},
		{[]string{"lifecycle", "--transport", "udp"}, 2, "--transport: "},
		{[]string{"herd", "--every", "1ms"}, 2, "--every: "},
		{[]string{"latency", "--rate", "0"}, 2, "--rate: "},
		{[]string{"scale", "--tasks", "0"}, 2, "--tasks: "},
		{[]string{"list", "--tasks", "0"}, 2, "--tasks: "},
		{[]string{"failover", "--lease-ttl", "1s"}, 2, "--lease-ttl: "},
		{[]string{"limti"}, 2, `unknown command "limti" for "carillon-bench"`},
		{[]string{"fire", "-o", "json", "--tasks", "0"}, 2, `"field":"--tasks"`},
		{[]string{"help"}, 0, ""},
	} {
		var out, errs bytes.Buffer
		if code := Main(t.Context(), c.args, strings.NewReader(""), &out, &errs); code != c.code || !strings.Contains(errs.String(), c.want) {
			t.Errorf("%v: exit code %d, want %d; got %q, want %q", c.args, code, c.code, errs.String(), c.want)
		}
	}
}

func TestReport_FailsIfAnythingIsNotVerified(t *testing.T) {
	var good, bad Result
	good.Name, bad.Name = "good", "bad"
	good.setVerified(nil)
	bad.setVerified(errors.New("run x was dispatched 2 times"))
	r := Report{Results: []Result{good, bad, {Name: "limit"}}}
	var coded interface{ ExitCode() int }
	if err := r.requireVerified(); !errors.As(err, &coded) || coded.ExitCode() != 8 || !strings.Contains(err.Error(), "bad") || strings.Contains(err.Error(), "good") {
		t.Errorf("the error is %v", err)
	}

	var out bytes.Buffer
	if err := r.writeTo(&out, false); err != nil || !strings.Contains(out.String(), "bad: run x was dispatched 2 times") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestClock_KnowsWhenItReachedATick(t *testing.T) {
	at := time.UnixMilli(1_000_000)
	c := newPacedClock(at)
	if !c.Now().Equal(at) {
		t.Errorf("it shows %s", c.Now())
	}

	c.advanceTo(1_000_010)
	c.advanceTo(1_000_005) // it does not go back
	c.advanceTo(1_000_020)
	var got []time.Time
	c.eachReached([]int64{1_000_001, 1_000_010, 1_000_011, 1_000_021}, func(at time.Time) { got = append(got, at) })

	if want := []time.Time{c.steps[0].at, c.steps[0].at, c.steps[1].at}; !slices.Equal(got, want) {
		t.Errorf("reached at %v, want %v", got, want)
	}
}
