package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/daemon/garbage"
	"github.com/carillonhq/carillon/pkg/internal/version"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Main runs one command line of the program carillon-bench, without the program's name, and returns its exit code:
// those of carillon, such as 2 for a wrong command line and 8 for a result that is not verified.
func Main(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	f := factory.New(factory.IO{In: in, Out: out, Err: errs})
	f.Words = args

	root := newRootCommand()
	root.PersistentPreRun = func(*cobra.Command, []string) { f.Parsed = true }
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	root.SetArgs(args)

	err := root.ExecuteContext(ctx)

	var known *failure.Error
	switch {
	case err != nil && ctx.Err() != nil:
		err = failure.Interrupted(err)
	case err != nil && !f.Parsed && !errors.As(err, &known):
		err = failure.Usage("%s", err) // an error of cobra about the words of the command line
	}

	return f.Report(err)
}

// newRootCommand returns the command "carillon-bench".
func newRootCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "carillon-bench",
		Short: "Run benchmarks of Carillon and etcd",
		Long: "Measure Carillon on this machine, with a node in this process, against an embedded or an external etcd.\n" +
			"Each benchmark uses its own prefix, /carillon-bench-<random>, deletes it at the end, and touches no other keys.\n" +
			"It also reports the rate that etcd reaches with the same writes, measured in the same run. Afterwards it reads every\n" +
			"revision back: a result is verified if each tick was decided once and each run ended once. Otherwise the command fails.\n\n" +
			"Do not use an etcd that other applications depend on: the benchmark takes all of its capacity.",
		Example: "  carillon-bench fire\n" +
			"  carillon-bench lifecycle --transport grpc -o json\n" +
			"  carillon-bench fire --duration 3s\n" +
			"  carillon-bench process --slots 32 -- /bin/echo hello\n" +
			"  carillon-bench limit --etcd-endpoints http://127.0.0.1:2379",
		SilenceErrors:     true, // Main prints them
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}

	cmd.SetFlagErrorFunc(factory.FlagError)
	cmd.PersistentFlags().StringP("output", "o", output.FormatTable, "output format: table or json")

	for _, k := range benchmarkKinds() {
		cmd.AddCommand(k.newCommand())
	}

	// This program starts itself as an agent or a guardian.
	for _, c := range daemon.Commands() {
		c.Hidden = true
		if c.Name() == "agent" {
			c.PreRun = func(cmd *cobra.Command, _ []string) { go answerCollect(cmd.InOrStdin(), cmd.OutOrStdout()) }
		}

		cmd.AddCommand(c)
	}

	return cmd
}

// kind is one benchmark.
type kind struct {
	use, short, long string
	defaults         func(*settings)       // changes the default settings; may be nil
	flags            []string              // in addition to the flags of all benchmarks
	check            func(*settings) error // further rules for the settings; may be nil
	run              func(*bench, context.Context) error
}

// benchmarkKinds lists the benchmarks.
func benchmarkKinds() []kind {
	load := []string{"tasks", "keep", "limit-duration", "duration", "warmup"}
	return []kind{
		{use: "limit", short: "Measure etcd alone, without Carillon", run: (*bench).measureEtcd, flags: []string{"duration", "value-bytes"},
			long: "Measure etcd with its own client and the write patterns of Carillon. --duration applies to each pattern.\n" +
				"limit/fire_commit is the limit for fire, limit/fire_finish the limit for lifecycle.",
			defaults: func(s *settings) { s.Duration = 4 * time.Second }},
		{use: "fire", short: "Measure ticks decided and dispatched per second", run: (*bench).measureFire, flags: load,
			long: "Decide ticks and dispatch their runs as fast as possible, to the inbox of a node that ignores it."},
		{use: "lifecycle", short: "Measure complete no-op runs per second", run: (*bench).measureLifecycle, flags: append(load, "overlap", "outstanding"),
			long: "Dispatch, start and end runs, and write and trim their history, as fast as possible. The action does nothing.\n" +
				"With --overlap skip, a tick whose previous run is still active is skipped and counted as skipped."},
		{use: "process [-- COMMAND [ARG...]]", short: "Measure real processes per second", run: (*bench).measureProcess,
			flags:    append(load, "overlap", "outstanding", "slots", "cgroup"),
			long:     "Like lifecycle, but start a process for each run (default /bin/true) and keep its output.\nThe limit is fork and exec of the same command, with as many at once as there are slots.",
			defaults: func(s *settings) { s.Tasks, s.Outstanding = 5000, 500 }},
		{use: "http", short: "Measure HTTP requests per second", run: (*bench).measureHTTP, flags: append(load, "overlap", "outstanding"),
			long: "Like lifecycle, but send a POST request for each run, to a server in this process that answers at once.\n" +
				"The limit is net/http alone, with as many requests at once to the same server. \"attempts\" is the part of Carillon\n" +
				"that sends the requests, without scheduling and records, compared with the same limit.",
			defaults: func(s *settings) { s.Tasks, s.Outstanding = 5000, 2000 }},
		{use: "create", short: "Measure tasks created per second", run: (*bench).measureCreate, flags: []string{"callers", "limit-duration", "duration", "warmup"},
			long: "Create tasks in bulk through the API over loopback, then one at a time with many callers, through the store and through the API,\n" +
				"while a scheduler loads them."},
		{use: "herd", short: "Measure the lateness of many ticks in the same second", run: (*bench).measureHerd,
			flags:    []string{"tasks", "keep", "overlap", "slots", "every", "rounds"},
			long:     "Let all tasks tick in the same second, several times, and measure the time from the tick to its claim in etcd.\nThe runs do nothing and end at once.",
			defaults: func(s *settings) { s.Tasks = 10_000 }},
		{use: "latency", short: "Measure the lateness of ticks on an idle node", run: (*bench).measureLatency, flags: []string{"rate", "keep", "overlap", "duration", "warmup"},
			long: "Measure the time from a tick to its claim in etcd and to the start of its action, on an otherwise idle node."},
		{use: "scale", short: "Measure memory and CPU of a node with a million tasks", run: (*bench).measureScale,
			flags: []string{"tasks", "base", "rate", "label-values", "alerts", "duration", "warmup"},
			long: "Start a node in its own process on a cluster with many tasks, none of them due. Measure its memory (VmRSS in\n" +
				"/proc/PID/status, minus that of a node without tasks) and its idle CPU. Then create --rate tasks that tick each second.\n" +
				"A second pass with few tasks shows whether a fire costs more among many. A million tasks need 3 GB of disk and 8 GB of memory,\n" +
				"most of it for etcd.",
			defaults: func(s *settings) {
				s.Tasks, s.Rate, s.Duration, s.Warmup = 1_000_000, 5000, 20*time.Second, 5*time.Second
			}},
		{use: "failover", short: "Measure the longest pause of a task when nodes join, drain, restart and die", run: (*bench).measureFailover, check: checkFailoverRate,
			flags: []string{"tasks", "rate", "keep", "duration", "lease-ttl"},
			long: "Start three nodes, each in its own process, on a cluster with many tasks; --rate of them tick each second. One node joins, one\n" +
				"drains, all restart one after another, one is killed, then the leader is killed. For each change, read from etcd when every run\n" +
				"was decided. The longest gap is the time by which a task exceeded its period. --duration is how long to measure after the\n" +
				"cluster has recovered.",
			defaults: func(s *settings) { s.Tasks, s.Rate, s.Duration = 100_000, 1000, 3*time.Second }},
		{use: "chain", short: "Measure the time from the end of a run to the run that it starts in another task", run: (*bench).measureChain,
			flags: []string{"ends", "rate", "fan", "kill", "every", "keep", "lease-ttl"},
			long: "Start three nodes, each in its own process, and --rate chains of ten tasks. The first task of each chain has a tick each second, and\n" +
				"each of the others runs after the one before it, until --ends runs were started by others. With --fan, there is one task with a tick\n" +
				"each second instead, and so many others run after it. With --kill, a node is killed and started again, --every so often. Measure the\n" +
				"time from when etcd reports the end of a run until it reports the dispatch of the run that it starts, and in the same run that of\n" +
				"single commits, chain/commit. A result is verified if each end has started exactly one run in each task that runs after it.",
			defaults: func(s *settings) { s.Rate, s.Keep, s.Every = 20, 3, 10*time.Second }},
		{use: "list", short: "Measure pages of tasks in all orders, with filters", run: (*bench).measureList, check: checkFailoverRate,
			flags: []string{"tasks", "rate", "rounds", "keep", "duration", "lease-ttl"},
			long: "Start a node in its own process on a cluster with many tasks in 20 namespaces; --rate of them tick each second. Others are\n" +
				"paused, failing or running. Ask for pages of them over HTTP, in each order and with several filters, the first page and the one\n" +
				"after it, --rounds times by one asker and by eight. Then ask 256 different questions per second, for --duration. Last, a second\n" +
				"node takes over half of the tasks and is killed. Lists say what they lack until the first node knows how their runs had ended.\n" +
				"A result is verified if each page has the expected tasks and counts. A million tasks take half an hour and 8 GB of memory.",
			defaults: func(s *settings) {
				s.Tasks, s.Rounds, s.Lease = 100_000, 10, 30*time.Second
			}},
	}
}

// defaultSettings returns the settings without flags.
func defaultSettings() settings {
	return settings{
		Site:   etcdTargetConfig{Transport: transportDirect},
		Shards: 256, Slots: daemon.Defaults().Slots, Cgroup: cgroup.Auto,
		Tasks: 20_000, Duration: 10 * time.Second, Warmup: 2 * time.Second, Limit: 4 * time.Second, Callers: 256,
		Overlap: defaultOverlap, Keep: task.Defaults().History.Keep, Outstanding: 8000, Rate: 100, Every: 4 * time.Second, Rounds: 3,
		ValueBytes: 250, Base: 10_000, Ends: 2000, LabelValues: usualApps, Lease: 10 * time.Second, Command: []string{"/bin/true"},
	}
}

// bindFlags binds the settings to flags: those of all benchmarks, and of the others those that are named.
func (s *settings) bindFlags(f *pflag.FlagSet, named []string) {
	f.StringSliceVar(&s.Site.Endpoints, "etcd-endpoints", nil, "comma-separated etcd endpoints (default: an embedded etcd)")
	f.StringVar(&s.Site.User, "etcd-user", "", "user name for etcd; the password is CARILLON_ETCD_PASSWORD")
	f.StringVar(&s.Site.Transport, "transport", s.Site.Transport, "how to reach an embedded etcd: in-process or grpc")
	f.StringVar(&s.Site.Dir, "temp-dir", "", "directory for temporary data, such as that of an embedded etcd (default: the system's)")
	f.IntVar(&s.Shards, "shards", s.Shards, "shards of the cluster")
	f.BoolVar(&s.Audit, "audit", false, "also check every revision with the rules of carillon audit; needs memory")

	some := pflag.NewFlagSet("", pflag.ContinueOnError)
	some.IntVar(&s.Tasks, "tasks", s.Tasks, "number of tasks")
	factory.DurationVar(some, &s.Duration, "duration", s.Duration, "how long to measure")
	factory.DurationVar(some, &s.Warmup, "warmup", s.Warmup, "how long to run before the measurement")
	factory.DurationVar(some, &s.Limit, "limit-duration", s.Limit, "how long to measure the limits of etcd, in total (0s: do not)")
	some.IntVar(&s.Callers, "callers", s.Callers, "number of concurrent callers")
	some.StringVar(&s.Overlap, "overlap", s.Overlap, "overlap policy of the tasks: skip or allow")
	some.IntVar(&s.Keep, "keep", s.Keep, "ended runs kept per task")
	some.IntVar(&s.Outstanding, "outstanding", s.Outstanding, "maximum number of runs dispatched but not ended; half as many ticks fall due at once")
	some.IntVar(&s.Slots, "slots", s.Slots, "processes that run at the same time")
	some.StringVar(&s.Cgroup, "cgroup", s.Cgroup, "control groups of attempts: auto or off")
	some.IntVar(&s.Base, "base", s.Base, "number of tasks of the pass with few tasks")
	some.IntVar(&s.LabelValues, "label-values", s.LabelValues, "distinct values of one of the three labels of the tasks")
	some.BoolVar(&s.Alerts, "alerts", false, "let each task expect a success within 26 hours")
	some.IntVar(&s.Rate, "rate", s.Rate, "ticks each second")
	factory.DurationVar(some, &s.Every, "every", s.Every, "time between two rounds or kills, in whole seconds")
	some.IntVar(&s.Rounds, "rounds", s.Rounds, "number of rounds to measure")
	some.IntVar(&s.Ends, "ends", s.Ends, "number of runs that other runs start")
	some.IntVar(&s.Fan, "fan", 0, "number of tasks that run after one task (0: chains)")
	some.BoolVar(&s.Kill, "kill", false, "kill nodes while the tasks run")
	factory.DurationVar(some, &s.Lease, "lease-ttl", s.Lease, "time after which a silent node counts as gone")
	some.IntVar(&s.ValueBytes, "value-bytes", s.ValueBytes, "size of the values written")
	some.VisitAll(func(flag *pflag.Flag) {
		if slices.Contains(named, flag.Name) {
			f.AddFlag(flag)
		}
	})
}

// validate checks the settings, and replaces the command by its path.
func (s *settings) validate() error {
	refuse := func(flag string, value any, rule string) error {
		return task.Invalid(task.CodeBadValue, "--"+flag, "%v: %s", value, rule)
	}

	for _, n := range []struct {
		flag             string
		value, low, high int
	}{
		{"shards", s.Shards, 1, 4096}, {"tasks", s.Tasks, 1, 10_000_000}, {"callers", s.Callers, 1, 10_000}, {"slots", s.Slots, 1, 100_000},
		{"keep", s.Keep, 1, 1000}, {"base", s.Base, 1, 1_000_000}, {"label-values", s.LabelValues, 1, 10_000_000}, {"outstanding", s.Outstanding, 1, 1_000_000}, {"rate", s.Rate, 1, 10_000}, {"rounds", s.Rounds, 1, 1000},
		{"value-bytes", s.ValueBytes, 1, 16_000}, {"ends", s.Ends, 1, 10_000_000}, {"fan", s.Fan, 0, task.MaxDependents},
	} {
		if n.value < n.low || n.value > n.high {
			return refuse(n.flag, n.value, fmt.Sprintf("must be between %d and %d", n.low, n.high))
		}
	}

	switch {
	case s.Site.Transport != transportDirect && s.Site.Transport != transportGRPC:
		return refuse("transport", task.Quote(s.Site.Transport), "use in-process or grpc")
	case s.Overlap != task.OverlapAllow && s.Overlap != task.OverlapSkip:
		return refuse("overlap", task.Quote(s.Overlap), "use skip or allow")
	case s.Every < time.Second || s.Every%time.Second != 0:
		return refuse("every", s.Every, "must be whole seconds")
	case s.Duration <= 0:
		return refuse("duration", s.Duration, "must be more than 0s")
	case s.Warmup < 0:
		return refuse("warmup", s.Warmup, "must not be less than 0s")
	case s.Lease < 2*time.Second || s.Lease > 10*time.Minute:
		return refuse("lease-ttl", s.Lease, "must be between 2s and 10m")
	case s.Limit < 0:
		return refuse("limit-duration", s.Limit, "must not be less than 0s")
	}

	program, err := exec.LookPath(s.Command[0])
	if err != nil {
		return refuse("", task.Quote(s.Command[0]), "is not a program")
	}

	s.Command = append([]string{program}, s.Command[1:]...)

	return nil
}

// newCommand returns the command of one benchmark.
func (k kind) newCommand() *cobra.Command {
	s := defaultSettings()

	if k.defaults != nil {
		k.defaults(&s)
	}

	cmd := &cobra.Command{Use: k.use, Short: k.short, Long: k.long, Args: cobra.NoArgs}
	if strings.HasPrefix(k.use, "process") {
		cmd.Args = func(cmd *cobra.Command, args []string) error { return nil }
	}

	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		// Arguments are the command of the benchmark process.
		if len(args) > 0 {
			s.Command = args
		}

		s.Site.Password = os.Getenv("CARILLON_ETCD_PASSWORD")
		if err := s.validate(); err != nil {
			return err
		}

		if k.check != nil {
			if err := k.check(&s); err != nil {
				return err
			}
		}

		format, err := cmd.Flags().GetString("output")
		if err != nil {
			return err
		}
		if format != output.FormatTable && format != output.FormatJSON {
			return task.Invalid(task.CodeBadValue, "--output", "%s: use table or json", task.Quote(format))
		}

		// The report is printed even if a result is not verified. The error comes afterwards.
		report, err := k.runBenchmark(cmd, s)
		if err != nil {
			return err
		}

		report.Command = commandLine(cmd, args)

		return errors.Join(report.writeTo(cmd.OutOrStdout(), format == output.FormatJSON), report.requireVerified())
	}

	s.bindFlags(cmd.Flags(), k.flags)
	cmd.Flags().StringVar(&s.CPUProfile, "cpuprofile", "", "write a CPU profile of the measurement to this file")
	cmd.Flags().StringVar(&s.MemProfile, "memprofile", "", "write a profile of the heap and of all allocations to this file")
	_ = cmd.Flags().MarkHidden("cpuprofile") // they exist
	_ = cmd.Flags().MarkHidden("memprofile")

	return cmd
}

// runBenchmark runs one benchmark and cleans up after it.
func (k kind) runBenchmark(cmd *cobra.Command, s settings) (_ *Report, err error) {
	ctx := cmd.Context()
	defer garbage.MakeRoom()() // as in a node

	// The log writes through the progress display, so that messages do not mix with its line.
	b := &bench{settings: s, progress: newProgress(cmd.ErrOrStderr())}
	log := newLog(b.progress)
	b.log = log
	defer b.progress.clearLine()

	if b.etcdTarget, err = openEtcdTarget(ctx, s.Site, log); err != nil {
		return nil, err
	}

	// Clean up in any case. If that fails, the error names the prefix that may be left.
	defer func() {
		b.progress.beginStep("clean up")
		if cerr := b.etcdTarget.close(ctx); cerr != nil {
			err = errors.Join(err, fmt.Errorf("clean up (keys that remain begin with %s): %w", b.root, cerr))
		}
	}()

	b.report = &Report{Machine: thisMachine(), Versions: Versions{Carillon: version.Get(), Go: runtime.Version(), Etcd: "unknown"}, Etcd: b.describeEtcd()}
	for _, m := range store.New(b.client, kv.Direct(b.client), b.keys).Members(ctx, callLimit) {
		if m.Err == nil {
			b.report.Versions.Etcd = m.Version
		}
	}

	if err := k.run(b, ctx); err != nil {
		return nil, err
	}

	return b.report, heapProfile(b.MemProfile)
}

// newLog returns a logger for errors only. Warnings of a saturated etcd are expected in a benchmark.
func newLog(out io.Writer) *zap.Logger {
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(enc), zapcore.Lock(zapcore.AddSync(out)), zap.ErrorLevel))
}

// describeEtcd describes how etcd is reached, and where its data is.
func (b *bench) describeEtcd() string {
	if b.server == nil {
		return "external, grpc"
	}
	return "embedded, " + b.Site.Transport + ", data on " + fileSystem(b.dir)
}

// measureEtcd measures all write patterns.
func (b *bench) measureEtcd(ctx context.Context) error {
	names := []string{limitPut, limitTextbook, limitNested, limitCommit, limitCycle}
	list, err := b.measureLimits(ctx, b.Duration*time.Duration(len(names)), plainSizes(b.ValueBytes), names...)
	b.addResults(list...)

	return err
}

// commandLine returns the command that reproduces a run, without flags that do not affect the figures.
func commandLine(cmd *cobra.Command, args []string) string {
	line := cmd.CommandPath()
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "output" {
			line += " --" + f.Name + "=" + strings.Trim(f.Value.String(), "[]")
		}
	})

	if len(args) > 0 {
		line += " -- " + strings.Join(args, " ")
	}

	return line
}

// startProfile starts a CPU profile, if one was requested. The function that it returns ends it.
func (b *bench) startProfile() (func() error, error) { return cpuProfile(b.CPUProfile) }

// cpuProfile starts a CPU profile to a file, unless name is "". The function that it returns ends it.
func cpuProfile(name string) (func() error, error) {
	if name == "" {
		return func() error { return nil }, nil
	}

	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}

	return func() error { pprof.StopCPUProfile(); return f.Close() }, nil
}

// heapProfile writes a profile of allocations to a file, unless name is "".
func heapProfile(name string) error {
	if name == "" {
		return nil
	}

	f, err := os.Create(name)
	if err != nil {
		return err
	}

	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}
