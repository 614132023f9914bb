package chaos_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/apitest"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/pasttick"
	"github.com/carillonhq/carillon/pkg/internal/test/recorder"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// verdict is the result of judging a run, in addition to its failures.
type verdict struct {
	report  check.Report
	events  []check.Event
	acks    int
	calls   int // judged by porcupine
	unclear int // histories that were too long for porcupine
}

// judge ends the load and then the daemons, and checks all guarantees.
func (w *world) judge(c *callers) verdict {
	w.t.Helper()
	c.end()
	w.say("users made: %v", c.used)

	if c.used["visitor: apply"] == 0 || c.used["visitor: delete its token"]+c.used["visitor: narrow its binding"]+c.used["visitor: disable it"] == 0 {
		w.fail("harness", "the visitor never wrote, or never lost its rights: G27 is not tested")
	}

	// The short run does not wait until the tasks that do not succeed have alerts.
	var calm []check.Period
	if w.long {
		from := time.Now()
		time.Sleep(watchTime)
		calm = []check.Period{{From: from, To: time.Now()}}
	}

	if err := w.quiet(); err != nil {
		w.fail("G16", "%v", err)
	}

	// Nor does it wait until all alerts are those of the records.
	var evaluated time.Time
	if w.long {
		evaluated = time.Now()
		time.Sleep(evaluationTime)
	}

	until := time.Now().Add(-2 * time.Second)
	w.finalCounts = w.counters()
	w.judgeGoroutines()
	w.judgeAnswers()
	w.leave()
	ctx, cancel := context.WithTimeout(w.ctx, 3*time.Minute)
	defer cancel()

	var v verdict

	events, err := w.recorder.Stop(ctx)
	if err != nil {
		w.fail("recording", "it proves nothing: %v", err)
	}

	for _, e := range events {
		if k, ok := w.keys.ParseShard(e.Key); !ok || k.Ref.Namespace != poisonSpace {
			v.events = append(v.events, e)
		}
	}

	v.report = check.Check(w.keys, v.events, check.Options{Until: until, Ended: true, Audited: true, Folded: true, Full: w.wasFull, WrongClocks: w.wrongClocks, Evaluated: evaluated, Calm: calm})
	for _, violation := range v.report.Violations {
		w.failures = append(w.failures, violation.String())
	}

	if v.report.Summary.Triggered == 0 {
		w.fail("harness", "no run has started another: G63 and G64 are not tested")
	}

	w.judgeProbes(v.events)
	v.acks = len(c.acks)
	for _, violation := range check.CheckAcknowledged(w.keys, v.events, c.acks) {
		w.failures = append(w.failures, violation.String())
	}

	v.calls, v.unclear = w.judgeRegisters(c)

	for _, odd := range c.odd {
		w.fail("G13", "%s", odd)
	}

	w.judgeLogs()

	if len(w.failures) > 0 {
		w.keep(v.events)
		w.t.Errorf("%d violations; the first:\n%s", len(w.failures), strings.Join(w.failures[:min(20, len(w.failures))], "\n"))
	}

	return v
}

// quiet pauses all tasks and waits until no run waits or is active.
func (w *world) quiet() error {
	if len(w.up()) == 0 {
		return errors.New("no daemon is left")
	}

	var all []client.Task
	if err := w.eventually(w.promised(convergence), func() (err error) {
		all, err = w.up()[0].client.Tasks.List(w.ctx, client.TaskListOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("list the tasks: %w", err)
	}

	up := w.up()
	queue := make(chan client.Task, len(all))

	for _, one := range all {
		if !one.Paused && !strings.HasPrefix(one.Schedule[0], "@at") {
			queue <- one
		}
	}

	close(queue)
	var wg sync.WaitGroup

	failed := make(chan error, 8)
	for i := range cap(failed) {
		wg.Go(func() {
			for one := range queue {
				if err := w.eventually(w.promised(convergence), func() error {
					_, err := up[i%len(up)].client.Tasks.Pause(w.ctx, one.Namespace, one.Name, 0)
					if errors.Is(err, task.ErrNotFound) {
						return nil // a delete has since taken effect whose caller did not receive the answer
					}
					return err
				}); err != nil {
					failed <- fmt.Errorf("pause %s/%s: %w", one.Namespace, one.Name, err)
					return
				}
			}
		})
	}

	wg.Wait()
	close(failed)

	if err := <-failed; err != nil {
		return err
	}

	// A run whose target was down waits for up to 30 s before its next attempt, and its retries follow.
	return w.eventually(w.promised(90*time.Second), w.nothingOpen)
}

// nothingOpen returns nil if no run waits or is active, each end of a run was sent to the dependents of its task, and each trigger
// has its outcome. It reads everything at one revision: in two readings, a run that fails and is retried could be missed by both.
func (w *world) nothingOpen() error {
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()

	res, err := w.client.Txn(ctx).Then(
		clientv3.OpGet(w.keys.Runs(), clientv3.WithPrefix(), clientv3.WithKeysOnly()),
		clientv3.OpGet(w.keys.Shards(), clientv3.WithPrefix()),
	).Commit()
	if err != nil {
		return err
	}

	if active := res.Responses[0].GetResponseRange().Kvs; len(active) > 0 {
		return fmt.Errorf("%d attempts are active, such as %s", len(active), active[0].Key)
	}

	var records []check.Event
	for _, e := range res.Responses[1].GetResponseRange().Kvs {
		if k, ok := w.keys.ParseShard(string(e.Key)); ok && k.Kind == record.KindQueued {
			return fmt.Errorf("run %s of %s waits: %s", k.Run, k.Ref, e.Value)
		}

		records = append(records, check.Event{Key: string(e.Key), Value: e.Value, ModRevision: e.ModRevision, CreateRevision: e.CreateRevision})
	}

	if owed := check.Owed(w.keys, records); len(owed) > 0 {
		return fmt.Errorf("%d ends or triggers wait, such as %s", len(owed), owed[0])
	}

	return w.noOldData(ctx)
}

// leave stops the daemons one after another, and checks that nothing is left (G20).
func (w *world) leave() {
	for _, n := range w.nodes {
		if !n.process.running() {
			continue
		}

		if err := w.stopNode(n, syscall.SIGTERM); err != nil {
			w.fail("G20", "%s: %v", n.name, err)
		}
	}

	if err := w.eventually(w.promised(10*time.Second), w.nothingLeft); err != nil {
		w.fail("G20", "%v", err)
	}
}

// nothingLeft returns nil if no keys, leases or processes of any node are left.
func (w *world) nothingLeft() error {
	ctx, cancel := context.WithTimeout(w.ctx, 3*time.Second)
	defer cancel()

	// cleared/… is left. Its own lease removes it after days.
	for _, prefix := range []string{w.keys.Nodes(), w.keys.Runs(), w.keys.Leader()} {
		res, err := w.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		if len(res.Kvs) > 0 {
			return fmt.Errorf("%d keys are left, such as %s", len(res.Kvs), res.Kvs[0].Key)
		}
	}

	cleared, err := w.client.Get(ctx, w.keys.Root()+"cleared/", clientv3.WithPrefix())
	if err != nil {
		return err
	}

	leases, err := w.client.Leases(ctx)
	if err != nil {
		return err
	}

	for _, l := range leases.Leases {
		if slices.ContainsFunc(cleared.Kvs, func(e *mvccpb.KeyValue) bool { return e.Lease == int64(l.ID) }) {
			continue
		}

		// The answer to the request for the lease of a key in cleared/ may have been lost, and another lease was used. Then
		// the lost one has no key. It ends by itself. Sessions have leases of seconds.
		if ttl, err := w.client.TimeToLive(ctx, l.ID, clientv3.WithAttachedKeys()); err != nil {
			return err
		} else if ttl.GrantedTTL < int64(time.Hour/time.Second) || len(ttl.Keys) > 0 {
			return fmt.Errorf("lease %x of %ds is left, one of %d", l.ID, ttl.GrantedTTL, len(leases.Leases))
		}
	}

	for _, f := range find(w.mark) {
		if f.variable(asDaemon) != "" || f.isTask() {
			return fmt.Errorf("a process is left: pid %d, child of %d, %s", f.pid, f.parent, f.command)
		}
	}

	return nil
}

// judgeGoroutines compares the goroutines of idle daemons with their number before the load (G18). Connections of
// the test's own clients come and go.
func (w *world) judgeGoroutines() {
	for _, n := range w.up() {
		w.say("%s has %d goroutines, and had %d before the load", n.name, n.goroutines, n.idle)
		if n.idle > 0 && n.goroutines > 2*n.idle+100 {
			w.fail("G18", "%s has %d goroutines, and had %d before the load", n.name, n.goroutines, n.idle)
		}
	}
}

func (w *world) judgeProbes(events []check.Event) {
	f, err := os.Open(w.probes)
	if errors.Is(err, os.ErrNotExist) {
		return
	}

	w.must(err)
	defer f.Close()

	for _, v := range check.CheckProbeLog(f, w.keys, events) {
		w.failures = append(w.failures, "probe log: "+v.String())
	}
}

// judgeRegisters checks the calls on each shared task against the model (G14).
func (w *world) judgeRegisters(c *callers) (calls, unclear int) {
	for name, h := range c.histories {
		switch apitest.Check(h, 10*time.Second) {
		case porcupine.Ok:
			calls += len(h)
		case porcupine.Unknown:
			unclear++
		default:
			w.fail("G14", "the calls on registers/%s are not linearizable:\n%+v", name, h)
		}
	}

	return calls, unclear
}

// judgeLogs finds messages that no daemon may log.
func (w *world) judgeLogs() {
	for _, n := range w.nodes {
		b, err := os.ReadFile(n.log)
		if err != nil {
			continue
		}

		for _, bad := range []string{"DATA RACE", "\npanic: ", "fatal error: "} {
			if i := bytes.Index(b, []byte(bad)); i >= 0 {
				w.fail("log", "%s says:\n%.2000s", n.name, b[i:])
			}
		}
	}
}

// keep saves the history next to the logs.
func (w *world) keep(events []check.Event) {
	f, err := os.Create(filepath.Join(w.dir, "history.jsonl"))
	if err == nil {
		err = errors.Join(recorder.Save(f, events), f.Close())
	}

	if err != nil {
		w.t.Errorf("keep the history: %v", err)
	}
}

// questions is how many past ticks judgeAnswers asks about.
const questions = 300

// judgeAnswers asks the API about past ticks of the load. Most of their records are in ledgers by then. No answer may say
// anything else than what the recorder has seen (G31).
func (w *world) judgeAnswers() {
	if len(w.up()) == 0 {
		return // quiet has reported it
	}

	if err := w.recorder.CatchUp(w.ctx); err != nil {
		w.fail("recording", "it proves nothing: %v", err)
		return
	}

	past := pasttick.Read(w.keys, w.recorder.Events(), nil).Ticks
	refs := slices.SortedFunc(maps.Keys(past), func(a, b record.Ref) int { return cmp.Compare(a.String(), b.String()) })
	refs = slices.DeleteFunc(refs, func(r record.Ref) bool { return r.Namespace != loadSpace })
	if len(refs) == 0 {
		return
	}

	r := rand.New(rand.NewPCG(uint64(w.seed), 7))
	from := map[string]int{}

	for range questions {
		ref := refs[r.IntN(len(refs))]
		t := past[ref][r.IntN(len(past[ref]))]

		ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
		a, err := w.up()[0].client.Tasks.Why(ctx, ref.Namespace, ref.Name, t.Question())
		cancel()

		switch what := t.Contradiction(a); {
		case err != nil:
			from["failed"]++
		case what != "":
			w.fail("G31", "why %s at %s: %s: the answer is %s: %s", ref, t.At, what, a.Verdict, a.Sentence)
		case a.Ledger != nil:
			from["the ledger"]++
		case a.Verdict == task.VerdictForgotten:
			from["not on record"]++
		default:
			from["the history"]++
		}
	}

	w.say("answers about past ticks came from: %v", from)
}

// counts are a node's counters, summed over its processes. What a process counts after it was last read is lost
// when it ends, so the sums are a little low.
type counts struct {
	before, now map[string]float64
}

// settle adds the counters of the previous process to the sum.
func (c *counts) settle() {
	c.before, c.now = c.sum(), nil
}

func (c *counts) sum() map[string]float64 {
	sum := map[string]float64{}
	for _, m := range []map[string]float64{c.before, c.now} {
		for name, v := range m {
			sum[name] += v
		}
	}

	return sum
}

// scrape reads a node's counters, if the node answers.
func (w *world) scrape(n *node) {
	if !n.process.running() {
		return
	}

	c := http.Client{Timeout: 500 * time.Millisecond}
	res, err := c.Get("http://" + n.metrics + "/metrics")
	if err != nil {
		return
	}

	defer res.Body.Close()

	now := map[string]float64{}
	for s := bufio.NewScanner(res.Body); s.Scan(); {
		series, value, ok := strings.Cut(s.Text(), " ")
		name, _, _ := strings.Cut(series, "{")
		counter := strings.HasPrefix(name, "carillon_") && strings.HasSuffix(name, "_total") && !strings.HasPrefix(name, "carillon_api_")
		v, err := strconv.ParseFloat(value, 64)
		switch {
		case !ok || err != nil:
		case counter:
			now[series] = v
		case series == "go_goroutines":
			n.goroutines = int(v)
		}
	}

	n.counts.now = now
}

// counters returns the sums over all nodes.
func (w *world) counters() map[string]float64 {
	sum := map[string]float64{}
	for _, n := range w.nodes {
		w.scrape(n)
		for series, v := range n.counts.sum() {
			sum[series] += v
		}
	}

	return sum
}
