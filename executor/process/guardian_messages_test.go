package process

import (
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/guardian/guardiantest"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

func guardedLauncher(t *testing.T) (*Runner, *guardian.Client) {
	l := newLauncher(t, spool.Config{})
	l.guardian = guardian.NewClient(guardiantest.Config(t.TempDir()))
	return l, l.guardian
}

func announced(x guardian.Message) bool {
	return x.Attempt != nil && x.Attempt.RunID == "r1" && x.Attempt.Pid == 0
}

func TestGuardian_KnowsOfAnAttemptBeforeTheForkAndOfItsProcessAtOnce(t *testing.T) {
	l, g := guardedLauncher(t)
	e := guardiantest.Listen(t, g)

	prep, err := l.prepareAttempt(executortest.Assigned("r1", &task.Process{Shell: "exec sleep 300"}), executortest.NewToken())
	if err != nil {
		t.Fatal(err)
	}

	told := make(chan uint64, 1)
	prep.mayStart = func() error { // nothing was forked yet
		told <- e.Hear("of the attempt", announced).Attempt.ID
		return nil
	}

	o := NewOrders()
	ended := make(chan Result)
	go func() { ended <- l.runPrepared(prep, o) }()
	id := <-told

	pid := e.Hear("of the process", func(x guardian.Message) bool { return x.Attempt != nil && x.Attempt.Pid > 0 && x.Attempt.ID == id }).Attempt.Pid
	if pid == 0 || !executortest.Alive(pid) {
		t.Errorf("process %d was announced, but does not exist", pid)
	}

	o.Kill(Kill{CauseCancel, 0})
	<-ended
	g.SetRenewal(1, time.Minute) // as the executor does at each check
	e.Hear("of the end", func(x guardian.Message) bool { return x.End == id })
}

func TestGuardian_LostBeforeTheForkIsWaitedFor(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	cfg := guardiantest.Config(t.TempDir())
	cfg.Logger = zap.New(core)
	l, g := newLauncher(t, spool.Config{}), guardian.NewClient(cfg)
	l.guardian = g
	guardiantest.Listen(t, g).Close() // the guardian is dead, and the client does not know it yet

	prep, err := l.prepareAttempt(executortest.Assigned("r1", &task.Process{Shell: "exit 0"}), executortest.NewToken())
	if err != nil {
		t.Fatal(err)
	}

	guarded := make(chan struct{})
	prep.mayStart = func() error {
		select {
		case <-guarded:
		default:
			t.Error("about to be forked without a guardian")
		}

		return nil
	}

	ended := make(chan Result)
	go func() { ended <- l.runPrepared(prep, NewOrders()) }()
	executortest.Eventually(t, "writing to fail", func() bool { return logs.FilterMessage("cannot reach the guardian").Len() > 0 })
	close(guarded)
	e := guardiantest.Listen(t, g)

	if r := <-ended; r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}

	e.Hear("of the attempt", announced)
}

func TestGuardian_HearsEachWordOnce(t *testing.T) {
	_, g := guardedLauncher(t)
	e := guardiantest.Listen(t, g)
	a := g.Announce(guardian.Attempt{Mark: proctree.Mark{RunID: "r1"}})

	if err := g.Flush(); err != nil {
		t.Fatal(err)
	}

	e.Hear("of the attempt", announced)
	a.Ended()

	if err := g.Flush(); err != nil {
		t.Fatal(err)
	}

	if x := e.Hear("of its end", func(guardian.Message) bool { return true }); x.End != a.ID {
		t.Errorf("the next word is %+v, not the end", x)
	}
}
