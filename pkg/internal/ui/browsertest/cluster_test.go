//go:build browser

package browsertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// cluster is a node with an embedded etcd, in a process of its own.
type cluster struct {
	dir     string
	program string
	address string // 127.0.0.1:PORT
	token   string
	api     *client.Client
	node    *exec.Cmd
	exited  chan struct{} // closed when the node has ended

	failed, running           string // runs of the fixtures
	flow, flowActive, flowMap string // those of workflows
}

// hostileText would leave any place of a page.
const hostileText = `"'><img src=x onerror=alert(1)><script>alert(1)</script></td></table>${x}`

// startCluster starts a node in a directory, and creates the fixtures.
func startCluster(ctx context.Context, program, dir string) (*cluster, error) {
	c := &cluster{dir: dir, program: program, address: "127.0.0.1:0"}
	if err := c.startNode(ctx); err != nil {
		return c, err
	}

	token, err := os.ReadFile(filepath.Join(dir, "data", "token"))
	if err != nil {
		return c, err
	}
	c.token = strings.TrimSpace(string(token))
	if c.api, err = c.as(c.token); err != nil {
		return c, err
	}

	return c, c.createFixtures(ctx)
}

// as returns a client with a token.
func (c *cluster) as(token string) (*client.Client, error) {
	return client.New(client.Config{Server: "http://" + c.address, Insecure: true, Token: token})
}

// startNode starts the node at its address, and waits until it is ready.
func (c *cluster) startNode(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(c.dir, "node.log"), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()

	c.node = exec.Command(c.program, "dev", "--data-dir", filepath.Join(c.dir, "data"), "--listen", c.address, "--cgroup", "off")
	c.node.Env = append(os.Environ(), "XDG_CONFIG_HOME="+c.dir)
	c.node.Stdout, c.node.Stderr = log, log
	if err := c.node.Start(); err != nil {
		return err
	}

	exited := make(chan struct{})
	c.exited = exited
	go func() { defer close(exited); _ = c.node.Wait() }()

	return poll(ctx, time.Minute, func() error {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			return err
		}
		_, rest, ok := strings.Cut(string(text), "is up: http://")
		select {
		case <-exited:
			return fatal{fmt.Errorf("the node has ended:\n%s", text)}
		default:
		}
		if !ok {
			return fmt.Errorf("the node does not start:\n%s", text)
		}
		c.address, _, _ = strings.Cut(rest, "\n")

		r, err := http.Get("http://" + c.address + "/readyz")
		if err != nil {
			return err
		}
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("the node is not ready: %s", r.Status)
		}
		return nil
	})
}

// stop ends the node, with the processes that it has started.
func (c *cluster) stop() {
	if c.node == nil || c.node.Process == nil {
		return
	}
	_ = c.node.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-time.After(20 * time.Second):
		_ = c.node.Process.Kill()
		<-c.exited
	}
}

// kill ends the node as a crash does.
func (c *cluster) kill(t *testing.T) {
	t.Helper()
	must(t, c.node.Process.Kill())
	<-c.exited
}

// createFixtures creates the tasks, and waits until the runs that pages show exist.
func (c *cluster) createFixtures(ctx context.Context) error {
	frozen := task.Namespace{Name: "frozen", Shell: true, RunAs: []string{"*"}}
	if _, err := c.api.Namespaces.Put(ctx, frozen, client.Writing{Create: true}); err != nil {
		return err
	}
	for _, s := range fixtureTasks() {
		if _, err := c.api.Tasks.Create(ctx, s.Namespace, s); err != nil {
			return fmt.Errorf("create %s: %w", s.Name, err)
		}
	}

	deleted := task.Defaults()
	deleted.Name, deleted.Namespace, deleted.Description, deleted.Schedule = "deleted", "default", hostileText, task.Schedules{"@daily"}
	deleted.Action.Noop = &task.Noop{}
	if _, err := c.api.Tasks.Create(ctx, "default", deleted); err != nil {
		return err
	}
	if err := c.api.Tasks.Delete(ctx, "default", "deleted", 0); err != nil {
		return err
	}

	change := []byte(`{"description":"Dumps the database and keeps seven days","timeout":"1h"}`)
	if _, err := c.api.Tasks.Patch(ctx, "default", "backup-db", change, 0); err != nil {
		return err
	}
	if _, err := c.api.Freezes.Begin(ctx, "frozen", "migration of the database, until Monday"); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}

	var err error
	for _, name := range []string{"backup-db", "hostile", "needs-gpu", "nightly-report"} {
		if c.failed, err = c.trigger(ctx, name); err != nil {
			return err
		}
	}
	if c.running, err = c.trigger(ctx, "import-orders"); err != nil {
		return err
	}
	for name, run := range map[string]*string{"orders-flow": &c.flow, "endless-flow": &c.flowActive, "map-flow": &c.flowMap} {
		if *run, err = c.trigger(ctx, name); err != nil {
			return err
		}
	}

	// All but the last of these runs move to the ledger of the task.
	for _, day := range []string{"good", "bad", "good"} {
		if err := c.runShortMemory(ctx, day); err != nil {
			return err
		}
	}

	silence := client.SilenceRequest{Glob: "legacy-*", For: task.Duration(time.Hour), Reason: "until the new firewall works " + hostileText}
	if _, err := c.api.Alerts.Silence(ctx, "default", silence, false); err != nil {
		return fmt.Errorf("silence: %w", err)
	}

	for id, state := range map[string]task.State{c.failed: task.Failed, c.running: task.Running, c.flow: task.Failed} {
		if err := c.awaitRun(ctx, id, state); err != nil {
			return err
		}
	}

	return c.awaitAlert(ctx)
}

// awaitAlert waits until the alert of the task that fails is open.
func (c *cluster) awaitAlert(ctx context.Context) error {
	return poll(ctx, time.Minute, func() error {
		list, err := c.api.Alerts.List(ctx, client.AlertListOptions{Namespace: "default"})
		if err == nil && len(list) == 0 {
			err = errors.New("no alert is open")
		}
		return err
	})
}

// fixtureTasks are the tasks of the test cluster. Most have no ticks while the tests run.
func fixtureTasks() []task.Spec {
	shell := func(text string) task.Action { return task.Action{Process: &task.Process{Shell: text}} }
	add := func(name, schedule string, action task.Action, edits ...func(*task.Spec)) task.Spec {
		s := task.Defaults()
		s.Namespace, s.Name, s.Schedule, s.Action = "default", name, task.Schedules{schedule}, action
		s.Timezone = "Europe/Berlin"
		for _, edit := range edits {
			edit(&s)
		}
		return s
	}
	labels := func(pairs ...string) func(*task.Spec) {
		return func(s *task.Spec) {
			s.Labels = map[string]string{}
			for i := 0; i < len(pairs); i += 2 {
				s.Labels[pairs[i]] = pairs[i+1]
			}
		}
	}

	return []task.Spec{
		add("backup-db", "30 2 * * *", shell("echo dumping; echo done"), labels("team", "data", "tier", "gold"), func(s *task.Spec) {
			s.Accept.Env = []string{"DAY"}
		}),
		add("nightly-report", "15 3 * * 1-5", shell(`echo "reading orders"; echo "cannot reach db-2: connection refused" >&2; exit 3`), labels("team", "data"), func(s *task.Spec) {
			s.Alerts = &task.Alerts{Notify: []string{"slack", "ops/nobody"}, SuccessWithin: task.Duration(100 * time.Hour)}
		}),
		slackReceiver(),
		add("import-orders", "@manual", shell(`i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo "imported batch $i"; sleep 0.2; done`), labels("team", "shop")),
		add("legacy-sync", "*/5 * * * *", shell("true"), func(s *task.Spec) {
			s.Paused, s.PauseReason = true, "waits for the new firewall "+hostileText
		}),
		add("hostile", "0 4 1 * *", shell(`printf '\033[31mred\033[0m \377\376 <script>alert(1)</script> \r overwritten\n'; printf '%05000d\n' 1`), func(s *task.Spec) {
			s.Description = hostileText
		}),
		add("needs-gpu", "@manual", shell("true"), func(s *task.Spec) { s.Target.Selector = "gpu = a100" }),
		add("ticker", "@every 5s", shell("echo tick"), labels("team", "ops")),
		add("short-memory", "@manual", shell(`[ "$DAY" != bad ] || exit 3`), func(s *task.Spec) {
			s.History.Keep, s.Accept.Env = 1, []string{"DAY"}
		}),
		add("flood", "@manual", shell("while :; do seq 1 4000; sleep 0.1; done"), func(s *task.Spec) { s.Timeout = task.Duration(2 * time.Minute) }),
		add("edited", "0 5 * * *", shell("true")),
		add("rotate-"+strings.Repeat("logs-", 20)+"long-name", "*/10 * * * *", shell("true")),
		add("clock-change", "30 2 * * 0", shell("true")),
		add("spread", "0 * * * *", shell("true"), func(s *task.Spec) { s.Jitter = task.Duration(10 * time.Minute) }),
		add("hourly-a", "0 * * * *", shell("true")),
		add("hourly-b", "0 * * * *", shell("true")),
		add("orders-report", "@manual", shell("true"), after(task.Source{Task: "backup-db"}, task.Source{Task: "import-orders", When: task.WhenEnded, Results: []string{"rows"}})),
		add("orders-mail", "@manual", shell("true"), after(task.Source{Task: "orders-report"})),
		add("orders-archive-with-a-very-long-name-that-has-to-break-somewhere", "@manual", shell("true"), after(task.Source{Task: "orders-mail", When: task.WhenFailed})),
		add("orders-flow", "@manual", task.Action{Workflow: ordersFlow()}),
		add("endless-flow", "@manual", task.Action{Workflow: endlessFlow()}),
		add("map-flow", "@manual", task.Action{Workflow: &task.Workflow{Steps: map[string]task.Step{"load": {Map: "1000", MaxParallel: 50, Noop: &task.Noop{}}}}}),
		add("frozen-job", "0 * * * *", shell("true"), func(s *task.Spec) { s.Namespace = "frozen" }),
	}
}

// ordersFlow is a workflow in which items of a map fail, and in which cleanup follows.
func ordersFlow() *task.Workflow {
	shell := func(text string) *task.Process { return &task.Process{Shell: text} }

	return &task.Workflow{Steps: map[string]task.Step{
		"extract": {Process: shell(`echo extracting; echo 'files=["a.csv","b.csv","c.csv","d.csv"]' >> "$CARILLON_STATUS_FILE"`)},
		"load": {
			Needs: []string{"extract"}, Map: "${steps.extract.results.files}",
			Process: &task.Process{Shell: `echo "loading $FILE"; [ "$FILE" != b.csv ] || { echo "cannot read $FILE" >&2; exit 3; }`, Env: map[string]string{"FILE": "${item}"}},
		},
		"check-the-orders-of-the-day-against-the-ledger": {Needs: []string{"extract"}, Noop: &task.Noop{}},
		"pay":    {Needs: []string{"load", "check-the-orders-of-the-day-against-the-ledger"}, Noop: &task.Noop{}},
		"notify": {Needs: []string{"load"}, When: task.WhenFailed, Process: shell("echo notifying")},
		"clean":  {Needs: []string{"extract", "pay"}, When: task.WhenAlways, Timeout: task.Duration(time.Minute), Process: shell("echo cleaning")},
	}}
}

// endlessFlow is a workflow that does not end by itself, and that cleans up.
func endlessFlow() *task.Workflow {
	shell := func(text string) *task.Process { return &task.Process{Shell: text} }

	return &task.Workflow{Steps: map[string]task.Step{
		"begin": {Noop: &task.Noop{}},
		"work":  {Needs: []string{"begin"}, Process: shell("echo working; sleep 3600")},
		"next":  {Needs: []string{"work"}, Noop: &task.Noop{}},
		"clean": {Needs: []string{"next"}, When: task.WhenAlways, Timeout: task.Duration(time.Minute), Process: shell("echo cleaning")},
	}}
}

// after makes a task run after others.
func after(sources ...task.Source) func(*task.Spec) {
	return func(s *task.Spec) {
		s.After, s.Overlap, s.Queue.Limit = sources, task.OverlapQueue, task.DefaultTriggerQueue
		if len(sources) > 1 {
			s.Join = task.JoinAny
		}
	}
}

// slackReceiver is a receiver of alerts that only says that it has sent the message.
func slackReceiver() task.Spec {
	s := task.ReceiverDefaults(task.Action{Process: &task.Process{Shell: `echo "$ALERT_TEXT"`}})
	s.Namespace, s.Name, s.Description, s.Accept.Env = "default", "slack", "Posts into #ops", []string{"ALERT_TEXT"}
	s.Action = task.Action{Process: &task.Process{Shell: `echo "$ALERT_TEXT"`}}

	return s
}

// trigger queues a run, and returns its id.
func (c *cluster) trigger(ctx context.Context, name string) (string, error) {
	r, err := c.api.Tasks.Trigger(ctx, "default", name, nil)
	if err != nil {
		return "", fmt.Errorf("trigger %s: %w", name, err)
	}
	return r.ID, nil
}

// runShortMemory runs the task whose history has a single run, and waits until the run has ended. It fails on bad days.
func (c *cluster) runShortMemory(ctx context.Context, day string) error {
	r, err := c.api.Tasks.Trigger(ctx, "default", "short-memory", map[string]string{"DAY": day})
	if err != nil {
		return err
	}

	if day == "bad" {
		return c.awaitRun(ctx, r.ID, task.Failed)
	}

	return c.awaitRun(ctx, r.ID, task.Succeeded)
}

// awaitRun waits until a run is in a state.
func (c *cluster) awaitRun(ctx context.Context, id string, state task.State) error {
	return poll(ctx, 30*time.Second, func() error {
		r, err := c.api.Runs.Find(ctx, "default", id)
		if err == nil && r.State != state {
			err = fmt.Errorf("run %s is %s, not %s", id, r.State, state)
		}
		return err
	})
}

// path fills in the runs of a page's path.
func (c *cluster) path(p Page) string {
	return strings.NewReplacer("{failed}", c.failed, "{running}", c.running, "{flow}", c.flow, "{flow-active}", c.flowActive, "{flow-map}", c.flowMap).Replace(p.Path)
}

// url returns the address of a path.
func (c *cluster) url(path string) string { return "http://" + c.address + path }

// poll calls f until it returns no error, or one that is fatal. It returns the last error when the time is over.
func poll(ctx context.Context, within time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		if errors.As(err, new(fatal)) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-every.C:
		}
	}
}

// fatal is an error that will not go away.
type fatal struct{ error }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await waits until f returns no error.
func await(t *testing.T, f func() error) {
	t.Helper()
	must(t, poll(t.Context(), patience, f))
}

// serve serves requests on a port of this host until the test ends.
func serve(t *testing.T, h http.Handler) (address string, server *http.Server) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server = &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })

	return l.Addr().String(), server
}
