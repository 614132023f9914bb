//go:build linux

package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/internal/test/clitest"
	"github.com/carillonhq/carillon/pkg/internal/test/oidcprovider"
	"github.com/carillonhq/carillon/pkg/internal/test/owners"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

const shards = 8

// world is a cluster with one API and no scheduler, over a store in memory. The scripts write the records that
// schedulers and nodes would write.
type world struct {
	memory  *kvmem.Store
	etcd    *kv.Client
	store   *store.Store
	cluster string // its ID
	spool   *spool
	reports statusReports

	meddler atomic.Pointer[func()] // is run just before the next PUT
	lost    atomic.Value           // []int: the shards that nobody owns
	shown   *readmodel.BoardAnswer // what the node says of shard 0 on a board; nil: what is in the records of all shards
}

type worldKey struct{}

func TestScripts(t *testing.T) {
	clitest.Run(t, "testdata/script", newWorld, clitest.Commands{"record": recordRun, "output": output, "node": node, "owner": owner, "worker": worker, "save": save, "board": board, "damage": damage, "own": own, "meddle": meddle, "report": reportStatus, "active": active, "parts": parts, "remember": remember, "disown": disown, "full": full, "chunk": chunk, "alert": putAlert, "sent": putSent, "mcp": mcpCall})
}

func newWorld(env *testscript.Env) clitest.Server {
	t := env.T().(testing.TB)
	memory := kvmem.New(kvmem.Config{MinTTL: 1})
	t.Cleanup(memory.Close)
	etcd := kvtest.ClientOf(t, memory)
	keys, err := record.NewKeys("/" + task.NewUID())
	must(t, err)
	w := &world{memory: memory, etcd: etcd, store: store.New(etcd, kv.Direct(etcd), keys), spool: &spool{}}
	secret, first := firstAccess()
	cluster, _, err := w.store.Bootstrap(context.Background(), shards, time.Now(), first)
	must(t, err)
	w.cluster = cluster.ID
	keeper, stop := runKeeper(t, etcd, keys)
	env.Defer(stop)
	address := "" // of HTTP_SERVER
	h, err := api.New(api.Config{Address: func() string { return address }, Store: w.store, Access: keeper, Cluster: cluster, Node: "node-a", Version: "v1.2.3", Ref: ref, Logs: w.spool, Attempts: &w.reports, Keys: secretKeys(env), PageQuiet: time.Minute,
		Logins: newLogins(t, w.store),
		Nodes: func() []task.Node {
			nodes, err := w.store.Nodes(context.Background())
			must(t, err)
			return nodes
		},
		Ask: func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
			if q.Board != nil && w.shown != nil {
				return readmodel.NodeAnswer{Node: "node-a", Shards: []readmodel.ShardAnswer{{Shard: 0, Owner: 1}}, Board: w.shown}, nil
			}
			lost, _ := w.lost.Load().([]int)
			return owners.Owner{Node: "node-a", Store: w.store, Shards: shards, Ref: ref, Now: time.Now}.Ask(ctx, q, slices.Concat(without, lost))
		},
		StateTimeout: time.Second,
		SetState: func(ctx context.Context, state string, _ *task.Actor) error {
			n, err := w.store.Node(ctx, "node-a")
			if err != nil {
				return err
			}

			n.State = state
			b, err := json.Marshal(n)
			if err == nil {
				_, err = etcd.Put(ctx, keys.Node("node-a"), string(b))
			}

			return err
		}})

	must(t, err)
	handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			if f := w.meddler.Swap(nil); f != nil {
				(*f)()
			}
		}

		h.ServeHTTP(rw, r)
	})

	s := httptest.NewServer(handler)
	env.Defer(s.Close)
	asRoot := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(rw, r.WithContext(api.WithTrustedUser(r.Context(), 0)))
	})
	env.Setenv("ROOT_SERVER", "unix://"+serveAtSocket(env, asRoot)) // where requests without a token are those of root on the node's host

	address = s.URL
	env.Setenv("HTTP_SERVER", s.URL) // the same API, for scripts that need an address
	env.Values[worldKey{}] = w
	env.Setenv("HALF_A_DAY_ON", time.Now().UTC().Add(12*time.Hour).Format("15:04")) // so that the time of day does not change during the test

	return clitest.Server{URL: "unix://" + serveAtSocket(env, handler), Token: secret}
}

// newLogins returns the logins of a cluster with two providers: with corp a person signs in at the second poll, and picky
// denies each login.
func newLogins(t testing.TB, s *store.Store) *oidclogin.Logins {
	provider := oidcprovider.New(t, oidcprovider.Client{ID: "carillon"})
	provider.Confirms = &oidcprovider.User{Subject: "1", Name: "Ann", Mail: "ann@example.com", Groups: []string{"ops"}}
	provider.PendingPolls, provider.Interval = 1, 1

	picky := oidcprovider.New(t, oidcprovider.Client{ID: "carillon"})
	picky.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
		denied := r.URL.Path == "/token"
		if denied {
			http.Error(w, `{"error":"access_denied"}`, http.StatusBadRequest)
		}
		return denied
	}

	providers := []oidclogin.Provider{
		{Name: "corp", Display: "Corp", Issuer: provider.URL, ClientID: "carillon"},
		{Name: "picky", Display: "Picky", Issuer: picky.URL, ClientID: "carillon"},
	}
	must(t, oidclogin.ValidateProviders("oidc", providers))

	return oidclogin.New(oidclogin.Config{Providers: providers, Key: s.LoginKey, Transport: &http.Transport{DisableKeepAlives: true}})
}

// disown takes the owner from the shards of some tasks in namespace default: disown TASK...
func disown(ts *testscript.TestScript, _ bool, names []string) {
	w := ts.Value(worldKey{}).(*world)
	lost := []int{}
	for _, name := range names {
		lost = append(lost, ref("default", name).Shard)
	}
	w.lost.Store(lost)
}

// firstAccess is what clusters begin with: user:ann, with a token of this secret, is an admin, and the namespaces that
// scripts use allow everything.
func firstAccess() (secret string, first store.FirstAccess) {
	secret, token := authority.NewSecret()
	token.Subject, token.CreatedAt = "user:ann", task.At(time.Now())
	first = store.FirstAccess{
		Tokens:   []record.Token{token},
		Bindings: []task.Binding{{Name: "ann", Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Subjects: []string{token.Subject}, Cluster: true}},
	}

	for _, ns := range []string{"default", "a", "bill", "billing", "from-flag", "imported", "ops", "other", "prod", "shop", "team"} {
		first.Namespaces = append(first.Namespaces, store.OpenNamespace(ns))
	}

	return secret, first
}

// runKeeper returns a keeper of access records that knows them, and what ends it.
func runKeeper(t testing.TB, etcd *kv.Client, keys record.Keys) (keeper *authority.Keeper, stop func()) {
	keeper = authority.New(etcd, keys, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = keeper.Run(ctx) }()

	_, err := keeper.AwaitLoaded(ctx)
	must(t, err)

	return keeper, func() { cancel(); <-done }
}

// serveAtSocket serves at a socket until the script ends. For a port, each command would look
// for the server's owner in the kernel's list of all connections, which are many while tests
// run.
func serveAtSocket(env *testscript.Env, h http.Handler) (path string) {
	t := env.T().(testing.TB)
	dir, err := os.MkdirTemp("", "cli") // the path of a socket is limited to 107 bytes, so WorkDir may be too long
	must(t, err)
	env.Defer(func() { _ = os.RemoveAll(dir) })

	path = filepath.Join(dir, "api.sock")
	l, err := net.Listen("unix", path)
	must(t, err)

	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	env.Defer(s.Close)

	return path
}

// meddle runs a command just before the next PUT, as another user would: meddle WORD...
func meddle(ts *testscript.TestScript, _ bool, args []string) {
	env := map[string]string{"CARILLON_SERVER": ts.Getenv("CARILLON_SERVER"), "CARILLON_TOKEN": ts.Getenv("CARILLON_TOKEN")}
	f := func() {
		cli.Main(context.Background(), args, cli.IO{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard, Env: func(name string) string { return env[name] }})
	}
	worldOf(ts).meddler.Store(&f)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ref(ns, name string) record.Ref {
	return record.Ref{Namespace: ns, Name: name, Shard: shard.Of(ns, name, shards)}
}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

func (w *world) put(ts *testscript.TestScript, key string, v any) {
	b, err := json.Marshal(v)
	ts.Check(err)
	_, err = w.etcd.Put(context.Background(), key, string(b))
	ts.Check(err)
}

// recordRun writes the record of an ended run: record TASK TICK STATE [exit=N] [took=D] [reason=R] [count=N]
// [last=T] [tail=TEXT] [attempt=N] [trigger=T] [dead=yes]. Its id is in $RUN.
func recordRun(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 3 {
		ts.Fatalf("usage: record TASK TICK STATE [key=value...]")
	}

	w := worldOf(ts)
	r := ref("default", args[0])
	tick, err := time.Parse(time.RFC3339, args[1])
	ts.Check(err)
	late := int64(12)
	run := task.Run{ScheduledTime: task.At(tick), State: task.State(args[2]), Trigger: task.TriggerSchedule, Owner: "node-a",
		CreatedAt: task.At(tick), EndedAt: task.At(tick.Add(time.Second))}
	if run.State != task.Skipped && run.State != task.Missed {
		run.Node, run.Attempt, run.Token, run.StartedAt, run.LatenessMS = "node-a", 1, 7, task.At(tick), &late
	}

	dead := false
	for _, arg := range args[3:] {
		if arg == "dead=yes" {
			dead = true
			continue
		}
		ts.Check(set(&run, tick, arg))
	}

	t, err := w.store.Task(context.Background(), r)
	ts.Check(err)
	id := task.RunID(tick, t.Task.UID)

	if run.UID = t.Task.UID; dead {
		w.put(ts, w.store.Keys().DeadRun(r, id), run)
	}

	w.put(ts, w.store.Keys().Ended(r, id), run)
	ts.Setenv("RUN", id)
}

// chunk adds a chunk to a task's ledger: chunk TASK HOUR JSON, where JSON has neither the uid nor the hour.
func chunk(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	r := ref("default", args[0])
	t, err := w.store.Task(context.Background(), r)
	ts.Check(err)
	hour, err := time.Parse(time.RFC3339, args[1])
	ts.Check(err)

	value := fmt.Sprintf(`{"uid":%q,"from":%q,%s`, t.Task.UID, args[1], strings.TrimPrefix(args[2], "{"))
	_, err = w.etcd.Put(context.Background(), w.store.Keys().LedgerChunk(r, strings.TrimSuffix(task.RunID(hour, ""), "-")), value)
	ts.Check(err)
}

// putAlert writes an alert that opened two hours ago: alert TASK KIND [notify=R,R] [failures=N] [run=RUN] [closed=WHY] [LABEL=VALUE].
// One that is closed was closed an hour ago. The alert of a problem of the cluster is: alert cluster CODE.
func putAlert(ts *testscript.TestScript, _ bool, args []string) {
	w, now := worldOf(ts), time.Now()
	a := task.Alert{UID: "u", Since: task.At(now.Add(-2 * time.Hour)), OpenedAt: task.At(now.Add(-2 * time.Hour)), Openings: 1}
	if args[0] == "cluster" {
		a.Text = "3 tasks are not evaluated"
		w.put(ts, w.store.Keys().ClusterAlert(args[1]), a)
		return
	}

	a.Kind = task.AlertKind(args[1])
	if a.Kind == task.AlertSuccessBy {
		a.Deadline = a.Since
	}

	for _, arg := range args[2:] {
		k, v, _ := strings.Cut(arg, "=")
		switch k {
		case "notify":
			a.Notify = strings.Split(v, ",")
		case "failures":
			a.Failures, _ = strconv.Atoi(v)
		case "run":
			a.Run = v
		case "closed":
			a.Closed = &task.AlertClose{At: task.At(now.Add(-time.Hour)), Why: task.AlertReason(v)}
		default:
			if a.Labels == nil {
				a.Labels = map[string]string{}
			}
			a.Labels[k] = v
		}
	}

	_, err := w.etcd.Put(context.Background(), w.store.Keys().Alert(ref("default", args[0]), a.Kind), record.EncodeAlert(a))
	ts.Check(err)
}

// putSent writes that a run of a receiver told it about an alert an hour ago: sent RECEIVER RUN TASK KIND.
func putSent(ts *testscript.TestScript, _ bool, args []string) {
	w, at := worldOf(ts), task.At(time.Now().Add(-time.Hour))
	receiver, r := ref("default", args[0]), ref("default", args[2])
	st, err := w.store.Task(context.Background(), receiver)
	ts.Check(err)
	list, err := w.store.AlertsOf(context.Background(), r)
	ts.Check(err)

	sent := task.AlertsSent{UID: st.Task.UID}
	for i := range list {
		if list[i].Kind == task.AlertKind(args[3]) {
			sent.Delivered = task.AlertKeys{alert.KeyOf(w.cluster, &list[i])}
		}
	}
	sent.Past = []task.AlertMessage{{Runs: []string{args[1]}, Opened: sent.Delivered, At: at}}
	w.put(ts, w.store.Keys().SentTo(receiver), sent)
}

func set(run *task.Run, tick time.Time, arg string) error {
	k, v, _ := strings.Cut(arg, "=")
	n, _ := strconv.Atoi(v)

	switch k {
	case "exit":
		run.ExitCode = &n
	case "used":
		run.Usage = task.Usage{CPUMS: 12500, MemoryPeak: 64 << 20, IORead: 1 << 20, IOWritten: 3 << 20}
	case "took":
		d, err := time.ParseDuration(v)
		run.EndedAt = task.At(tick.Add(d))
		return err
	case "bytes":
		run.OutputBytes = int64(n)
	case "status":
		run.HTTPStatus = n
	case "unsent":
		run.Unsent = &task.Unsent{Count: n, First: run.CreatedAt, Last: run.CreatedAt, Message: "connection refused"}
		run.NotBefore, run.NotBeforeBy = run.EndedAt, task.NotBeforeByTarget
	case "unenforced":
		run.Unenforced = strings.Split(v, ",")
	case "reason":
		run.Reason = v
	case "count":
		run.Count = int64(n)
	case "last":
		return run.Last.UnmarshalText([]byte(v))
	case "tail":
		run.OutputTail, run.OutputBytes = v, int64(len(v))
	case "attempt":
		run.Attempt = n
	case "trigger":
		run.Trigger = v
	case "checkpoint":
		run.Checkpoint = v
	case "parts":
		run.Node, run.Fan = "", &task.Fan{Count: n, Need: n}
		for i := range n {
			run.Fan.Parts = append(run.Fan.Parts, task.Run{ID: task.PartID(run.ID, i), State: run.State, Node: "node-a", Attempt: 1}.AsPart())
		}
	default:
		return fmt.Errorf("%s?", k)
	}

	return nil
}

// output stores the output of an attempt: output TASK RUN ATTEMPT FILE [TIMES]. Each line of TIMES contains an
// offset, a time and, if known, a stream.
func output(ts *testscript.TestScript, _ bool, args []string) {
	spool, key := worldOf(ts).spool, strings.Join([]string{"default", args[0], args[1], args[2]}, "/")
	spool.set(key, ts.ReadFile(args[3]))

	var marks []task.Mark
	if len(args) > 4 {
		for line := range strings.Lines(ts.ReadFile(args[4])) {
			words := append(strings.Fields(line), "")
			from, err := strconv.ParseInt(words[0], 10, 64)
			ts.Check(err)
			at, err := time.Parse(time.RFC3339Nano, words[1])
			ts.Check(err)
			marks = append(marks, task.Mark{From: from, At: at, Stream: words[2]})
		}
	}

	spool.mu.Lock()
	defer spool.mu.Unlock()

	if spool.marks == nil {
		spool.marks = map[string][]task.Mark{}
	}

	spool.marks[key] = marks
}

// node writes the record of a present node: node NAME [INELIGIBLE [ADDRESS [JSON]]]. JSON contains further
// fields.
func node(ts *testscript.TestScript, _ bool, args []string) {
	w, ineligible, address := worldOf(ts), "", "http://10.0.0.1:7070"
	if len(args) > 1 {
		ineligible = args[1]
	}

	if len(args) > 2 {
		address = args[2]
	}

	n := task.Node{Name: args[0], Instance: "i1", Ineligible: ineligible, State: task.NodeReady, Address: address,
		Version: "v1.2.3", Labels: map[string]string{"node": args[0], "os": "linux"}, Roles: []string{"scheduler", "executor"}, Slots: 4,
		Weight: 1, StartedAt: task.At(time.Now().Add(-3 * time.Hour))}

	if len(args) > 3 {
		ts.Check(json.Unmarshal([]byte(args[3]), &n))
	}

	w.put(ts, w.store.Keys().Node(args[0]), n)
}

// owner assigns a shard to a node: owner SHARD NODE.
func owner(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	id, err := strconv.Atoi(args[0])
	ts.Check(err)
	w.put(ts, w.store.Keys().Owner(id), map[string]any{"node": args[1], "since": task.At(time.Now().Add(-time.Hour))})
}

// worker ends all queued runs until the script ends: worker STATE [exit=N] [tail=TEXT] [parts=N]. Each part has
// printed its number.
func worker(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	ts.Defer(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		for ctx.Err() == nil {
			w.endQueued(ctx, ts, args)
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}

func (w *world) endQueued(ctx context.Context, ts *testscript.TestScript, args []string) {
	runs, err := w.store.ShardRuns(ctx, []int{0, 1, 2, 3, 4, 5, 6, 7}, "default")
	if err != nil {
		return // the script has ended
	}

	for _, run := range runs {
		if run.State != task.Queued {
			continue
		}

		r := ref(run.Namespace, run.Task)
		id := run.ID
		run.State, run.Node, run.Attempt, run.Token = task.State(args[0]), "node-a", 1, 9
		run.StartedAt, run.EndedAt = task.At(time.Now()), task.At(time.Now().Add(time.Second))

		for _, arg := range args[1:] {
			if err := set(&run, time.Now(), arg); err != nil {
				ts.Logf("worker: %v", err)
			}
		}

		if run.Fan != nil {
			for i := range run.Fan.Count {
				w.spool.set(fmt.Sprintf("default/%s/%s/1", run.Task, task.PartID(id, i)), fmt.Sprintf("of part %d\n", i))
			}
		}

		b, _ := json.Marshal(run)
		// In one transaction: no node leaves a run that has ended and is queued as well. If the write fails, the
		// run is found again.
		_, _ = w.etcd.Txn(ctx).Then(clientv3.OpPut(w.store.Keys().Ended(r, id), string(b)), clientv3.OpDelete(w.store.Keys().Queued(r, id))).Commit()
	}
}

// damage writes records that a repair removes: the history and a queued run of a task that does not exist.
func damage(ts *testscript.TestScript, _ bool, _ []string) {
	w, r := worldOf(ts), ref("default", "gone")
	for i := range 3 {
		w.put(ts, w.store.Keys().Ended(r, fmt.Sprintf("20261120T12000%d.000Z-aaaa", i)), task.Run{UID: "aaaa", State: task.Succeeded})
	}
	w.put(ts, w.store.Keys().Queued(r, "20261120T130000.000Z-aaaa"), task.Waiting{Run: task.Run{UID: "aaaa", State: task.Queued}})
}

// own writes what the owner records about a task: own TASK runs=N, failures=N, pause=REASON, until=TIME (of the
// last pause).
func own(ts *testscript.TestScript, _ bool, args []string) {
	w, r := worldOf(ts), ref("default", args[0])
	st, err := w.store.Task(context.Background(), r)
	ts.Check(err)

	e := st.Entry
	if e.Own == nil {
		e.Own = &task.Own{}
	}

	for _, arg := range args[1:] {
		k, v, _ := strings.Cut(arg, "=")
		n, _ := strconv.Atoi(v)

		switch k {
		case "runs":
			e.Own.Runs = int64(n)
		case "failures":
			e.Own.Failures = n
		case "pause":
			e.Paused = true
			e.Own.Pauses = append(e.Own.Pauses, task.Pause{Since: task.At(time.Now()), By: task.NewActor(task.PausedByFailures), Reason: v})
		case "until":
			ts.Check(e.Own.Pauses[len(e.Own.Pauses)-1].Until.UnmarshalText([]byte(v)))
		default:
			ts.Fatalf("own %s?", arg)
		}
	}

	w.put(ts, w.store.Keys().Entry(r), e)
}

// board sets what the node says of shard 0 on a board to the contents of a file: board FILE.
func board(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	w.shown = &readmodel.BoardAnswer{}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), w.shown))
}

// save writes a file that only its owner can read: save FILE TEXT.
func save(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(args[1]+"\n"), 0o600))
}

// remember puts what the last command printed into a variable: remember VARIABLE.
func remember(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// spool stores output in memory.
type spool struct {
	mu    sync.Mutex
	text  map[string]string
	marks map[string][]task.Mark
}

func (s *spool) set(key, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.text == nil {
		s.text = map[string]string{}
	}

	s.text[key] = text
}

func (s *spool) Open(ns, name, run string, attempt int) (io.ReadSeekCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	text, ok := s.text[fmt.Sprintf("%s/%s/%s/%d", ns, name, run, attempt)]
	if !ok {
		return nil, fmt.Errorf("spool: %w", os.ErrNotExist)
	}

	return struct {
		io.ReadSeeker
		io.Closer
	}{strings.NewReader(text), io.NopCloser(nil)}, nil
}

func (s *spool) Active(ns, name, run string, attempt int) bool { return false }

func (s *spool) Times(ns, name, run string, attempt int, from int64) ([]task.Mark, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	list := s.marks[fmt.Sprintf("%s/%s/%s/%d", ns, name, run, attempt)]
	for len(list) > 1 && list[1].From <= from {
		list = list[1:]
	}

	return list, nil
}

func (s *spool) Watch(ns, name, run string, attempt int) (<-chan struct{}, func(), error) {
	return nil, func() {}, nil
}

// secretKeys returns the keys of the node, from the file $WORK/node-keys if it exists.
func secretKeys(env *testscript.Env) func() (secret.Ring, error) {
	return secret.KeyFile(filepath.Join(env.WorkDir, "node-keys")).Ring
}
