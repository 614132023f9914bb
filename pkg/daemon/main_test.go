package daemon_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/kv"
)

// asDaemon in the environment makes the test binary run as the program, so that tests run real daemons with the
// race detector.
const asDaemon = "CARILLON_TEST_AS_DAEMON"

// ofFormat makes the program behave as a version that understands no newer record format than this.
const ofFormat = "CARILLON_TEST_FORMAT"

// raceOptions in the environment of a daemon end it at the first race. They also disable the delay of one second
// with which the race detector exits by default, because daemons and guardians exit at each restart.
const raceOptions = "GORACE=halt_on_error=1 atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	if socket := os.Getenv(asIntruder); socket != "" {
		if err := intrude(socket, os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(asDaemon) == "" {
		// The tasks of tests write into directories of the user who runs the tests.
		os.Setenv("CARILLON_DEFAULT_USER", strconv.Itoa(os.Getuid()))
		os.Exit(runTests(m))
	}
	ctx, stop := cli.Signals(context.Background())
	defer stop()
	if err := program().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// program returns the root command with the commands that run a node.
func program() *cobra.Command {
	root := &cobra.Command{Use: "carillon", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(environment().Commands()...)
	return root
}

// runTests runs up to six parallel tests, unless a flag sets another number. They mostly wait for leases and
// ticks.
func runTests(m *testing.M) int {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		_ = flag.Set("test.parallel", "6") // package testing has defined the flag
	}
	return m.Run()
}

// Environment variables that replace parts of a test daemon's environment.
const (
	clockFile = "CARILLON_TEST_CLOCK" // a file with the error of its wall clock as a duration; none or empty: no error
	hostName  = "CARILLON_TEST_HOST"  // the host on which it seems to run
	stuckFile = "CARILLON_TEST_STUCK" // while this file exists, its commits of shards never arrive
)

func environment() daemon.Environment {
	o := daemon.Environment{Host: os.Getenv(hostName), OpenDefault: true}
	if file := os.Getenv(clockFile); file != "" {
		o.Now = func() time.Time { return time.Now().Add(offsetIn(file)) }
	}
	if file := os.Getenv(stuckFile); file != "" {
		o.Etcd = func(ctx context.Context, cfg daemon.Config) (*kv.Client, error) {
			c, err := kv.Dial(ctx, kv.Config{Endpoints: cfg.EtcdEndpoints})
			if err == nil {
				c.KV = stuckKV{c.KV, file}
			}
			return c, err
		}
	}
	o.Format, _ = strconv.Atoi(os.Getenv(ofFormat)) // 0 means the format of this version
	return o
}

// stuckKV is an etcd that does not answer transactions on shards while a file exists.
type stuckKV struct {
	clientv3.KV
	file string
}

func (s stuckKV) Txn(ctx context.Context) clientv3.Txn {
	return &stuckTxn{Txn: s.KV.Txn(ctx), ctx: ctx, file: s.file}
}

type stuckTxn struct {
	clientv3.Txn
	ctx    context.Context
	file   string
	shards bool
}

func (t *stuckTxn) If(cs ...clientv3.Cmp) clientv3.Txn  { t.Txn = t.Txn.If(cs...); return t }
func (t *stuckTxn) Else(op ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(op...); return t }

func (t *stuckTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.shards = t.Txn.Then(ops...), t.shards || touchShards(ops)
	return t
}

func (t *stuckTxn) Commit() (*clientv3.TxnResponse, error) {
	if _, err := os.Stat(t.file); err != nil || !t.shards {
		return t.Txn.Commit()
	}
	ctx, cancel := context.WithTimeout(t.ctx, 2*time.Second)
	defer cancel()
	<-ctx.Done()
	return nil, ctx.Err()
}

func touchShards(ops []clientv3.Op) bool {
	for _, op := range ops {
		if op.IsTxn() {
			if _, then, _ := op.Txn(); touchShards(then) {
				return true
			}
		} else if op.IsPut() && strings.Contains(string(op.KeyBytes()), "/shards/") {
			return true
		}
	}
	return false
}

func offsetIn(file string) time.Duration {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	d, err := time.ParseDuration(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return d
}
