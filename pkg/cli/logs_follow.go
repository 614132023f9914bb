package cli

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Following a run: its output comes by itself, and ends when the attempt has. The
// run's record is read before and after; soon at first, then once a second.
const (
	pollFirst = 100 * time.Millisecond
	pollMost  = time.Second
	// pokedMost is the longest wait of a tail that hears from elsewhere when to look.
	pokedMost = 10 * time.Second
	// pollPatience is how long a server may be away. That it does not answer is no
	// reason to give up on a run that goes on without it.
	pollPatience = 30 * time.Second
	// startPatience is how long a run may wait for its start before that is said.
	startPatience = 2 * time.Second
	// silence is how long an attempt may write nothing until it is looked whether it
	// is over, and its node too ill to say so.
	silence = 10 * time.Second

	// atTheEnd is beyond any output: it is followed only for its end.
	atTheEnd = math.MaxInt64 / 2
)

// tail follows one run, attempt after attempt, to its end.
type tail struct {
	m        *merger
	c        *client.Client
	run      task.Run
	out      *lane           // nil: it is only waited for
	lines    int             // of what was there before; 0: all
	first    int             // the attempt to begin with; 0: the latest
	only     bool            // no other attempt than first
	poke     <-chan struct{} // tells when to look again; nil: nobody does
	seen     int64           // bytes of the attempt first
	begun    time.Time       // when it was waited for
	told     bool            // that it waits
	away     bool            // its node is; that was told
	bother   time.Time       // since when the server is away
	bothered bool            // that was told
	stubborn bool            // it may be away for ever
}

// follow returns the run as it ended. An error of the server that lasts ends it, and
// one of ctx or of the output.
func (t *tail) follow(ctx context.Context) (task.Run, error) {
	if t.out != nil {
		defer t.out.end()
	}
	t.begun = t.m.now()
	wait := pollFirst
	if t.run.UID == "" && t.run.State.Final() { // an event told of it, and not all
		if err := t.look(ctx); err != nil && !errors.Is(err, task.ErrUnavailable) {
			return t.run, err
		}
	}
	for {
		// The state first, the output after it: what a run wrote before it ended is
		// then not missed.
		final := t.run.State.Final()
		progress, err := t.outputs(ctx)
		if err == nil && (final || t.only && t.past(t.first)) {
			return t.run, nil
		}
		if looked := t.look(ctx); looked != nil {
			err = looked
		}
		if err := t.bear(ctx, err); err != nil {
			return t.run, err
		}
		if err == nil && t.run.State.Final() {
			continue
		}
		t.waits()
		if progress {
			wait = pollFirst
		}
		if err := t.pause(ctx, wait); err != nil {
			return t.run, err
		}
		most := pollMost
		if t.poke != nil {
			most = pokedMost
		}
		wait = min(wait*3/2, most)
	}
}

func (t *tail) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	case <-t.poke:
	}
	return nil
}

func (t *tail) look(ctx context.Context) error {
	r, err := t.c.Run(ctx, t.run.Namespace, t.run.Task, t.run.ID)
	if err == nil {
		t.run = r
	}
	return err
}

// waits says that the run does not start, once.
func (t *tail) waits() {
	if t.told || t.run.Node != "" || t.m.now().Sub(t.begun) < startPatience {
		return
	}
	t.told = true
	t.m.tell("waiting: %s is %s", t.name(), t.m.bareResult(t.run))
}

func (t *tail) name() string { return t.m.named(t.run.Namespace, t.run.Task) }

// started are the attempts that a node was given, in order.
func (t *tail) started() (list []int) {
	for _, a := range t.run.Attempts {
		if a.Node != "" {
			list = append(list, a.Attempt)
		}
	}
	if t.run.Node != "" {
		list = append(list, max(t.run.Attempt, 1))
	}
	return list
}

// past reports whether an attempt is over, by the run's record.
func (t *tail) past(n int) bool { return t.run.State.Final() || t.run.Attempt > n }

// outputs follows the attempts that there are. Progress: of one the end was reached.
func (t *tail) outputs(ctx context.Context) (progress bool, err error) {
	list := t.started()
	if t.first == 0 && len(list) > 0 {
		t.first = slices.Max(list)
	}
	for _, n := range list {
		if n < t.first || t.only && n != t.first {
			continue
		}
		if n > t.first {
			t.first, t.seen, t.lines = n, 0, 0
		}
		if err := t.attempt(ctx, n); err != nil {
			return progress, err
		}
		progress = true
		if !t.only {
			t.first, t.seen, t.lines = n+1, 0, 0
		}
	}
	return progress, nil
}

var (
	errAgain    = errors.New("look again") // what keeps the output away is no trouble of the server's
	errNotThere = errors.New("the attempt is over, and its node does not say so")
)

// attempt follows an attempt to its end, or to an error after which it goes on
// where it was.
func (t *tail) attempt(ctx context.Context, n int) error {
	if t.out != nil {
		t.out.attempt = n
	}
	o := client.LogOptions{Attempt: n, From: t.seen}
	switch {
	case t.out == nil:
		o.From = atTheEnd
	case t.seen == 0:
		o.Tail = t.lines
	}
	over := t.past(n)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, err := t.c.FollowLogs(ctx, t.run.Namespace, t.run.Task, t.run.ID, o)
	if e := (*client.Error)(nil); errors.As(err, &e) {
		gone := e.Code == client.CodeNoLogs || e.Code == client.CodeNodeAway // else it is trouble of the server's
		switch {
		case gone && over:
			t.kept(n, e)
			return nil
		case gone && e.Code == client.CodeNodeAway:
			if !t.away {
				t.m.tell("waiting: %s", e.Message)
			}
			t.away = true
			return errAgain
		case gone:
			return errAgain // it was handed back, and starts elsewhere
		}
	}
	if err != nil {
		return err
	}
	defer body.Close()
	t.away, t.bothered, t.bother = false, false, time.Time{}
	if t.seen = max(t.seen, body.From); t.out == nil {
		t.seen = 0
	}
	var reading atomic.Int64
	run := t.run
	go func() {
		if isStuck(ctx, t.c, run, n, &reading) {
			cancel(errNotThere)
		}
	}()
	err = t.copy(body, &reading)
	if errors.Is(context.Cause(ctx), errNotThere) {
		t.m.tell("the rest of the output of %s cannot be had: its node does not answer", t.name())
		return nil
	}
	return err
}

// isStuck lasts until ctx ends, or the attempt is over and nothing comes all the same.
func isStuck(ctx context.Context, c *client.Client, run task.Run, n int, reading *atomic.Int64) bool {
	tick := time.NewTicker(silence)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		since := reading.Load()
		if since == 0 || time.Since(time.Unix(0, since)) < silence {
			continue
		}
		if r, err := c.Run(ctx, run.Namespace, run.Task, run.ID); err == nil && (r.State.Final() || r.Attempt > n) && reading.Load() == since {
			return true
		}
	}
}

// copy writes what is read; reading is since when it waits for more, 0 while it does not.
func (t *tail) copy(body io.Reader, reading *atomic.Int64) error {
	b := make([]byte, 32<<10)
	for {
		reading.Store(time.Now().UnixNano())
		n, err := body.Read(b)
		reading.Store(0)
		if n > 0 && t.out != nil {
			t.seen += int64(n)
			if _, err := t.out.Write(b[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// kept writes the end of an output that is kept with the run, where the output itself
// is gone.
func (t *tail) kept(n int, why *client.Error) {
	switch {
	case t.out == nil:
	case n == t.run.Attempt && t.seen == 0 && t.run.OutputTail != "":
		t.m.tell("the full output cannot be had (%s); this is its end, kept with the run", why.Message)
		_, _ = t.out.Write([]byte(t.run.OutputTail)) // the next write tells
	case why.Code == client.CodeNodeAway || t.run.State.Final() && n == t.run.Attempt && t.run.OutputBytes > 0:
		t.m.tell("output of %s, attempt %d: %s", t.name(), n, why.Message)
	}
}

// bear puts up with a server that is away for a while.
func (t *tail) bear(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failed := t.m.failed(); failed != nil {
		return failed
	}
	switch {
	case err == nil, errors.Is(err, errAgain):
		t.bother = time.Time{}
		return nil
	case !errors.Is(err, task.ErrUnavailable):
		return err
	case t.bother.IsZero():
		t.bother = t.m.now()
	case t.stubborn: // who hears of events is told once, by whoever reads them
	case t.m.now().Sub(t.bother) > pollPatience:
		return err
	case !t.bothered:
		t.bothered = true // once is no trouble: a stream was cut, and is begun again
		t.m.tell("waiting for the server: %s", err)
	}
	return nil
}

// ended says how the run ended, how long it took, and where.
func (t *tail) ended() {
	plain := *t.m.app
	plain.color = "never"
	t.m.tell("%s %s", plain.result(t.run), plain.endWords(t.run))
}
