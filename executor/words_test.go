package executor

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// ear is the guardian's end of the daemon's words.
type ear struct {
	t     *testing.T
	lines *bufio.Reader
	pipe  *os.File
}

// listen has the test be the guardian.
func listen(t *testing.T, g *Guardian) *ear {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	if err := g.arrive(w); err != nil {
		t.Fatal(err)
	}
	return &ear{t: t, lines: bufio.NewReader(r), pipe: r}
}

// hear returns when the daemon has said what is waited for.
func (e *ear) hear(what string, is func(word) bool) (x word) {
	e.t.Helper()
	if err := e.pipe.SetReadDeadline(time.Now().Add(executortest.Patience)); err != nil {
		e.t.Fatal(err)
	}
	for {
		x = word{}
		if err := next(e.lines, &x); err != nil {
			e.t.Errorf("the guardian is not told %s: %v", what, err)
			return word{Ward: &ward{}}
		}
		if is(x) {
			return x
		}
	}
}

func guardedLauncher(t *testing.T) (*launcher, *Guardian) {
	l := newLauncher(t, spool.Config{})
	l.guardian = NewGuardian(guardianConfig(t.TempDir()))
	return l, l.guardian
}

func announced(x word) bool { return x.Ward != nil && x.Ward.RunID == "r1" && x.Ward.Pid == 0 }

func TestGuardian_KnowsOfAnAttemptBeforeTheForkAndOfItsProcessAtOnce(t *testing.T) {
	l, g := guardedLauncher(t)
	e := listen(t, g)
	what, err := l.prepare(executortest.Assigned("r1", &task.Process{Shell: "exec sleep 300"}), executortest.NewToken())
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan uint64, 1)
	what.may = func() error { // nothing is forked yet
		told <- e.hear("of the attempt", announced).Ward.ID
		return nil
	}
	o := newOrders()
	ended := make(chan Result)
	go func() { ended <- l.run(what, o) }()
	id := <-told
	pid := e.hear("of the process", func(x word) bool { return x.Ward != nil && x.Ward.Pid > 0 && x.Ward.ID == id }).Ward.Pid
	if pid == 0 || !executortest.Alive(pid) {
		t.Errorf("told of process %d, which does not live", pid)
	}
	o.give(kill{causeCancel, 0})
	<-ended
	g.renewed(1, time.Minute) // as at each look
	e.hear("of the end", func(x word) bool { return x.End == id })
}

func TestGuardian_LostBeforeTheForkIsWaitedFor(t *testing.T) {
	l, g := guardedLauncher(t)
	listen(t, g).pipe.Close() // dead, and nobody has noticed
	what, err := l.prepare(executortest.Assigned("r1", &task.Process{Shell: "exit 0"}), executortest.NewToken())
	if err != nil {
		t.Fatal(err)
	}
	guarded := make(chan struct{})
	what.may = func() error {
		select {
		case <-guarded:
		default:
			t.Error("about to be forked without a guardian")
		}
		return nil
	}
	ended := make(chan Result)
	go func() { ended <- l.run(what, newOrders()) }()
	<-g.down // writing failed
	close(guarded)
	e := listen(t, g)
	if r := <-ended; r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}
	e.hear("of the attempt", announced)
}

func TestGuardian_HearsEachWordOnce(t *testing.T) {
	_, g := guardedLauncher(t)
	e := listen(t, g)
	a := g.intend(ward{Mark: proctree.Mark{RunID: "r1"}})
	if err := g.flush(); err != nil {
		t.Fatal(err)
	}
	e.hear("of the attempt", announced)
	a.ended()
	if err := g.flush(); err != nil {
		t.Fatal(err)
	}
	if x := e.hear("of its end", func(word) bool { return true }); x.End != a.id {
		t.Errorf("the next word is %+v, not the end", x)
	}
}

func TestGuardian_BearsSilenceForAsLongAsWasSaidOfEachAttempt(t *testing.T) {
	w := newWatch()
	w.apply(word{Ward: &ward{ID: 1, Session: 7, Silence: 10 * time.Second}})
	w.apply(word{Ward: &ward{ID: 2, Session: 7, Silence: time.Hour}})
	w.apply(word{Session: &session{ID: 7, Renewed: time.Minute}})
	for now, want := range map[time.Duration][2]bool{
		time.Minute:                    {false, false},
		time.Minute + 11*time.Second:   {true, false},
		time.Minute + time.Hour + 1e+9: {true, true},
	} {
		if got := [2]bool{w.overdue(w.wards[1], now), w.overdue(w.wards[2], now)}; got != want {
			t.Errorf("at %s: overdue are %v, want %v", now, got, want)
		}
	}
	w.apply(word{Session: &session{ID: 7, Renewed: 2 * time.Minute}})
	if w.overdue(w.wards[1], 2*time.Minute+time.Second) {
		t.Error("overdue though its session was renewed")
	}
}

// After an upgrade a daemon of the former version may start this version's guardian.
func TestGuardian_UnderstandsADaemonThatSaysUntilWhenASessionIsBorne(t *testing.T) {
	w := newWatch()
	for _, said := range []string{`{"ward":{"id":1,"RunID":"r1","Token":1,"session":7}}`, `{"session":{"id":7,"until":60000000000}}`} {
		var x word
		if err := json.Unmarshal([]byte(said), &x); err != nil {
			t.Fatal(err)
		}
		w.apply(x)
	}
	if w.overdue(w.wards[1], time.Minute) || !w.overdue(w.wards[1], time.Minute+1) {
		t.Error("it is not overdue from that instant on")
	}
}
