package tasks

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// Limits of one batch request. Together they bound the memory of a request and the time for which other writers
// wait behind it.
const (
	// groupLines is the maximum number of tasks in one transaction.
	groupLines = store.MaxTogether
	// groupBytes keeps a group below the size that etcd accepts in one request. One byte of a line can become
	// twelve: six in the spec and six in the entry, if JSON escapes it.
	groupBytes = 96 << 10
	// groupText is the space for text that a group begins with, in bytes. It is enough for most.
	groupText = 24 << 10
	// batchGroups is the maximum number of groups of one request that are in flight.
	batchGroups = 12
	// batchIdle is how long the server waits for the next line, or for the caller to read answers.
	batchIdle = 5 * time.Minute
)

const batchAbout = "The body is NDJSON with one task per line, at most 1 MiB long. It can have any length: lines are read, checked, written and answered as they arrive. " +
	"The answer is NDJSON with one result for each line, in the same order. Empty lines are ignored. An invalid line does not affect the others. " +
	"If several lines have the same name, the last one wins. A task can run after tasks of earlier lines. With dry_run=true, nothing is written, and each line is compared with the existing task, not with earlier lines. " +
	"Read the answer while you send, or send at most about 10,000 lines per request. " +
	"If the connection breaks, answered lines have been applied; lines without an answer may have been. The body may pause for at most five minutes. " +
	"The token is checked again before each part is written. If it has expired or was deleted, the remaining lines fail with 401 and the batch ends."

// batch is one request with many tasks while it is served. Its lines are collected into groups, each with its
// own goroutine, and the groups overlap in time:
//
//	read ─► check ─► claim ─────────────────► write to etcd ─► answer
//	                 in the order of lines,   one group at     in the order of lines
//	                 behind all groups that   a time for each
//	                 share a task name        task name
//
// A claim is needed because two groups in flight could write the same task in either order, while the API
// promises that the later line wins. Claims are made in the order of lines, so a group only ever waits for
// earlier groups, and no two groups wait for each other.
type batch struct {
	*Handlers
	c     *httpapi.Call
	query batchQuery
	slots chan struct{} // one for each group in flight
	// tasksExisted is set if tasks of the latest group existed already. The next group then reads its tasks before its
	// first write, because a blind create would fail.
	tasksExisted atomic.Bool
	// revoked is set when the caller's token is no longer valid. Nothing more is read then.
	revoked atomic.Bool

	mu     sync.Mutex
	claims map[string]*group // by item.claims: the last group that writes it
	would  map[string]bool   // in a dry run: the tasks of the lines that were read
	logged map[string]bool   // codes of the failures that have been logged
}

// batchQuery are the parameters of a batch.
type batchQuery struct {
	CreateOnly bool `query:"create_only" default:"false" doc:"Fails with the code exists if the task exists already."`
	Full       bool `query:"full" default:"false" doc:"Returns the task in each result, as a read would return it."`
	dryRunQuery
}

// applyTasks serves POST /v1/tasks:batch.
func (h *Handlers) applyTasks(c *httpapi.Call, q batchQuery) (httpapi.Answer, error) {
	b := &batch{Handlers: h, c: c, query: q, slots: make(chan struct{}, batchGroups), claims: map[string]*group{}, would: map[string]bool{}, logged: map[string]bool{}}
	b.serveLines()
	return httpapi.Answer{}, nil
}

// serveLines runs the request in three stages: readGroups starts a goroutine for each group, the second stage claims names
// in the order of lines, and writeAnswers writes the results. It returns when all of its goroutines have ended.
func (b *batch) serveLines() {
	deadline := http.NewResponseController(b.c.Writer) // errors are ignored: not every http.ResponseWriter supports deadlines
	_ = deadline.EnableFullDuplex()
	b.c.Writer.Header().Set("Content-Type", httpapi.TypeLines)

	ctx, cancel := context.WithCancel(b.c.Context())
	defer cancel()
	parts, ctx := callgroup.WithContext(ctx) // a panic of one stage ends the others

	// A group in flight holds a slot, and there are batchGroups slots. So neither channel blocks its sender.
	checking, claimed := make(chan *group, batchGroups), make(chan *group, batchGroups)
	parts.Go(func() error {
		defer close(checking)
		b.readGroups(ctx, deadline, checking)

		return nil
	})

	parts.Go(func() error {
		defer close(claimed)
		// A group knows its names only when its lines are decoded. Claiming in the order of the channel keeps the
		// order of lines.
		for g := range checking {
			<-g.checked
			b.claimNames(g)
			claimed <- g
		}

		return nil
	})

	if err := b.writeAnswers(deadline, claimed); err != nil {
		cancel()
		_ = deadline.SetReadDeadline(time.Unix(1, 0)) // stop reading: the caller cannot learn the outcome of further lines
		// The groups in flight must end before serveLines returns, because they use the request.
		for g := range claimed {
			<-g.done
		}
	}

	_ = parts.Wait()
}

// readGroups collects lines into groups and starts the work on each. It does not wait for a group to fill up: when no
// complete line is buffered, the lines that have arrived form a group.
func (b *batch) readGroups(ctx context.Context, deadline *http.ResponseController, groups chan<- *group) {
	in := &lineReader{in: bufio.NewReaderSize(b.c.Request.Body, 64<<10)}
	var g *group
	hand := func() {
		if started := g; started != nil {
			callgroup.Start(func() { b.processGroup(ctx, started) }, func(p *callgroup.Panic) { b.reportPanic(started, p) })
			groups <- g
			g = nil
		}
	}

	defer hand()

	for !in.over && !b.revoked.Load() {
		if !in.hasLine() {
			hand()
			// The next read can block until the caller sends more, so it needs a fresh deadline.
			_ = deadline.SetReadDeadline(time.Now().Add(batchIdle))
			if b.revoked.Load() { // checkToken may have set its deadline before this one
				return
			}
		}

		line, err := in.nextLine()

		if b.revoked.Load() {
			return // this apparent end of the body was caused by the deadline that checkToken set
		}
		if len(line) == 0 && err == nil {
			continue
		}

		if g != nil && (len(g.items) == groupLines || len(g.text)+len(line) > groupBytes) {
			hand()
		}

		// A slot becomes free when writeAnswers takes a group's result. This blocks the reader, and so the caller, when
		// batchGroups groups are in flight.
		if g == nil {
			select {
			case b.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}

			g = newGroup()
		}

		g.addLine(in.number, line, err)
	}

	if !in.broken { // after a broken body there is nothing left to read
		_ = deadline.SetReadDeadline(time.Time{})
	}
}

// checkToken authenticates the caller again before a group is written. If the token is no longer valid, it
// fails the lines of the group and ends the batch. A batch can take hours, and a deleted token must
// not keep working for that long.
func (b *batch) checkToken(ctx context.Context, g *group) {
	err := b.CheckStream(ctx, b.c.Request)
	if err == nil {
		return
	}

	f := httpapi.AsFailure(err)
	if f.Status >= http.StatusInternalServerError {
		return // etcd is unavailable, so it accepts no writes either
	}

	for _, it := range g.items {
		if it.result == "" {
			it.fail(err)
		}
	}

	// Only the first group that notices reports the refusal and stops the reader.
	if !b.revoked.Swap(true) {
		b.ReportRefusal(b.c.Request, httpapi.CallerOf(b.c.Context()), f)
		_ = http.NewResponseController(b.c.Writer).SetReadDeadline(time.Unix(1, 0)) // ends a read that is blocked
	}
}

// claimNames records, for each task of a group, the earlier group that writes the same task last. The group is
// written only after those. Groups are claimed in the order of lines.
//
// A group with sources is also written after the earlier group that writes one of them, and after the last one with sources in the
// same namespace: transactions that add links there fail if they meet.
func (b *batch) claimNames(g *group) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for _, it := range g.items {
		if it.err != nil {
			continue
		}

		for _, source := range it.spec.After {
			g.waitFor(b.claims[it.ref.Namespace+"/"+source.Task])
		}

		for _, name := range it.claims() {
			g.waitFor(b.claims[name])
			b.claims[name] = g
		}

		if b.query.DryRun {
			b.would[it.ref.String()] = true
		}
	}

	close(g.claimed)
}

// releaseNames removes the claims that still point to a group which has been written.
func (b *batch) releaseNames(g *group) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range g.items {
		for _, name := range it.claims() {
			if b.claims[name] == g {
				delete(b.claims, name)
			}
		}
	}
}

// claims returns the names that an item claims: that of its task and, if the task has sources, one for the graph of its namespace.
func (it *item) claims() []string {
	if len(it.spec.After) == 0 {
		return []string{it.ref.String()}
	}
	return []string{it.ref.String(), "graph of " + it.ref.Namespace}
}

// waitFor has a group be written after another one, if that is an earlier group.
func (g *group) waitFor(before *group) {
	if before != nil && before != g && !slices.Contains(g.behind, before) {
		g.behind = append(g.behind, before)
	}
}

// wouldExist reports whether a line of a dry run, up to the present group, has a task.
func (b *batch) wouldExist(ref record.Ref) bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.would[ref.String()]
}

// writeAnswers writes the results of groups in the order of lines. It flushes only before it waits for a group, so
// that results which are ready together share a packet. It returns an error when the caller has gone.
func (b *batch) writeAnswers(w *http.ResponseController, groups <-chan *group) error {
	out := bufio.NewWriterSize(b.c.Writer, 32<<10)
	told, none := true, true // told: everything written has been flushed; none: nothing has been written
	tell := func() error {
		if told {
			return nil
		}
		told = true
		return errors.Join(out.Flush(), flushWriter(w))
	}

	for {
		var g *group
		var err error

		select {
		case g = <-groups:
		default:
			err = tell()
			g = <-groups
		}

		if g == nil {
			break // leaves the loop: the channel is closed, and all groups are answered
		}

		select {
		case <-g.done:
		default:
			err = errors.Join(err, tell())
			<-g.done
		}

		// The result exists, so the group no longer counts against the limit of groups in flight.
		<-b.slots

		if err == nil {
			_, err = out.Write(g.out)
			told, none = false, false
		}

		if err != nil {
			return err
		}
	}

	// A body without lines still needs a status line.
	if none {
		b.c.Writer.WriteHeader(http.StatusOK)
	}

	return tell()
}

// flushWriter sends buffered data to the caller, if the writer supports it.
func flushWriter(w *http.ResponseController) error {
	if err := w.Flush(); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
