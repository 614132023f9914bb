package tasks

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
)

// What one batch may have under way.
const (
	groupLines = store.MaxTogether
	// groupBytes keeps a group below what etcd takes in one request: a byte of a
	// line may become twelve, six in the spec and six in the entry.
	groupBytes  = 96 << 10
	batchGroups = 12
	// batchIdle is how long the next line, or the caller's reading of answers,
	// is waited for.
	batchIdle = 5 * time.Minute
)

const batchAbout = "The body is NDJSON: one task in each line, at most 1 MiB long; empty lines are passed over. It is read, checked, written and " +
	"answered as it arrives, however long it is. The answer is NDJSON, too: one result for each line, in their order. A line that is wrong fails " +
	"alone. Of lines with the same name the later wins. With dry_run=true nothing is written, and each line is compared with what is there, not with the lines before it. Read the answer while you send; who cannot sends at most some 10,000 lines at once. " +
	"If the connection breaks, what was answered is done, and lines that were sent and not answered may be. The body may pause for five minutes at most. " +
	"The token is checked again before each part is written. If it has expired or was deleted, the remaining lines fail with 401 and the batch ends."

// batch is a request of many tasks while it is served. Lines are taken together
// in groups, which overlap in time:
//
//	read ─► check ─► claim ─────────────────► write to etcd ─► answer
//	                 in the lines' order,     together         in the lines' order
//	                 behind all groups that
//	                 have one of the names
type batch struct {
	*Handlers
	c     *httpapi.Call
	query batchQuery
	slots chan struct{} // one for each group under way
	// there says that the tasks of the latest group were there already: the next
	// one's are read before anything is tried.
	there atomic.Bool
	// revoked says that the caller's token is not valid any more: no more is read.
	revoked atomic.Bool

	mu     sync.Mutex
	claims map[string]*group // by task: the last group that has it
	logged map[string]bool   // codes of failures that the log has
}

// batchQuery are the parameters of a batch.
type batchQuery struct {
	CreateOnly bool `query:"create_only" default:"false" doc:"Fails with the code exists if the task exists already."`
	Full       bool `query:"full" default:"false" doc:"Returns the task in each result, as a read would return it."`
	dryRunQuery
}

// applyTasks serves POST /v1/tasks:batch.
func (h *Handlers) applyTasks(c *httpapi.Call, q batchQuery) (httpapi.Answer, error) {
	b := &batch{Handlers: h, c: c, query: q, slots: make(chan struct{}, batchGroups), claims: map[string]*group{}, logged: map[string]bool{}}
	b.serve()
	return httpapi.Answer{}, nil
}

func (b *batch) serve() {
	deadline := http.NewResponseController(b.c.Writer) // not every writer has one
	_ = deadline.EnableFullDuplex()
	b.c.Writer.Header().Set("Content-Type", httpapi.TypeLines)

	ctx, cancel := context.WithCancel(b.c.Context())
	defer cancel()

	// Both have room for all groups that have a slot.
	checking, claimed := make(chan *group, batchGroups), make(chan *group, batchGroups)
	var parts sync.WaitGroup
	parts.Go(func() {
		defer close(checking)
		b.read(ctx, deadline, checking)
	})

	parts.Go(func() {
		defer close(claimed)
		for g := range checking {
			<-g.checked
			b.claim(g)
			claimed <- g
		}
	})

	if err := b.answer(deadline, claimed); err != nil {
		cancel()
		_ = deadline.SetReadDeadline(time.Unix(1, 0)) // nobody would learn what becomes of more lines
		for g := range claimed {
			<-g.done
		}
	}

	parts.Wait()
}

// read makes groups of the lines, and sets each to work. It does not wait for
// company: what has arrived is a group.
func (b *batch) read(ctx context.Context, deadline *http.ResponseController, groups chan<- *group) {
	in := &lines{in: bufio.NewReaderSize(b.c.Request.Body, 64<<10)}
	var g *group
	hand := func() {
		if g != nil {
			go b.work(ctx, g)
			groups <- g
			g = nil
		}
	}

	defer hand()

	for !in.over && !b.revoked.Load() {
		if !in.ready() {
			hand()
			_ = deadline.SetReadDeadline(time.Now().Add(batchIdle))
			if b.revoked.Load() { // checkToken may have set its deadline before
				return
			}
		}

		line, err := in.next()

		if b.revoked.Load() {
			return // what looks like an end of the body is the deadline that stopped the read
		}
		if len(line) == 0 && err == nil {
			continue
		}

		if g != nil && (len(g.items) == groupLines || len(g.text)+len(line) > groupBytes) {
			hand()
		}

		if g == nil {
			select {
			case b.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}

			g = newGroup()
		}

		g.add(in.number, line, err)
	}

	if !in.broken { // else the rest of the body is not waited for
		_ = deadline.SetReadDeadline(time.Time{})
	}
}

// checkToken fails the lines of a group if the caller's token is not valid any more, and
// ends the batch: a batch may take hours, and a token that was deleted must not go on.
func (b *batch) checkToken(ctx context.Context, g *group) {
	_, err := b.Authenticate(ctx, b.c.Request)
	if err == nil {
		return
	}

	f := httpapi.AsFailure(err)
	if f.Status >= http.StatusInternalServerError {
		return // etcd does not answer: then it takes no changes either
	}

	for _, it := range g.items {
		if it.result == "" {
			it.fail(err)
		}
	}

	if !b.revoked.Swap(true) {
		b.ReportRefusal(b.c.Request, f)
		_ = http.NewResponseController(b.c.Writer).SetReadDeadline(time.Unix(1, 0)) // a read that waits ends
	}
}

// claim puts a group behind all that have one of its names.
func (b *batch) claim(g *group) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for _, it := range g.items {
		if it.err != nil {
			continue
		}

		name := it.ref.String()
		if before := b.claims[name]; before != nil && before != g {
			g.behind = append(g.behind, before)
		}

		b.claims[name] = g
	}

	close(g.claimed)
}

func (b *batch) unclaim(g *group) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range g.items {
		if name := it.ref.String(); b.claims[name] == g {
			delete(b.claims, name)
		}
	}
}

// answer writes the results of groups as they are done, and flushes when it has
// to wait for more.
func (b *batch) answer(w *http.ResponseController, groups <-chan *group) error {
	out := bufio.NewWriterSize(b.c.Writer, 32<<10)
	told, none := true, true // all that was written has left; nothing was
	tell := func() error {
		if told {
			return nil
		}
		told = true
		return errors.Join(out.Flush(), flush(w))
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
			break
		}

		select {
		case <-g.done:
		default:
			err = errors.Join(err, tell())
			<-g.done
		}

		<-b.slots

		if err == nil {
			_, err = out.Write(g.out)
			told, none = false, false
		}

		if err != nil {
			return err
		}
	}

	if none {
		b.c.Writer.WriteHeader(http.StatusOK)
	}

	return tell()
}

func flush(w *http.ResponseController) error {
	if err := w.Flush(); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
