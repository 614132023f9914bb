package chaos_test

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var nodeFaults = []*fault{
	{name: "kill-idle", group: "node", what: "kill -9 of a daemon between two seconds, started again later", hold: lasting(2, 6),
		inject: onNode(func(w *world, _ *injection, n *node) error {
			untilPhase(500 * time.Millisecond)
			return w.stopNode(n, syscall.SIGKILL)
		}, (*world).startNode)},
	{name: "kill-mid-fire", group: "node", quick: true, what: "kill -9 of a daemon while it fires the ticks of a second", hold: lasting(2, 6),
		inject: onNode(func(w *world, in *injection, n *node) error {
			w.scrape(n)
			untilPhase(time.Duration(in.rnd.IntN(25)) * time.Millisecond)
			return w.stopNode(n, syscall.SIGKILL)
		}, (*world).startNode)},
	{name: "kill-leader", group: "node", what: "kill -9 of the leader", hold: lasting(2, 6), inject: killLeader},
	{name: "kill-two", group: "node", what: "kill -9 of two daemons at once", hold: lasting(4, 8), alone: true, inject: killTwo},
	{name: "kill-all", group: "node", what: "kill -9 of all daemons", hold: lasting(2, 4), alone: true, inject: killAll},
	{name: "restart-at-once", group: "node", what: "kill -9 of a daemon, started again at once", hold: lasting(0, 0),
		inject: onNode(func(w *world, _ *injection, n *node) error { return w.stopNode(n, syscall.SIGKILL) }, (*world).startNode)},
	{name: "terminate", group: "node", quick: true, what: "SIGTERM with running tasks, started again later", hold: lasting(1, 4),
		inject: onNode(func(w *world, _ *injection, n *node) error { return w.stopNode(n, syscall.SIGTERM) }, (*world).startNode)},
	{name: "rolling-restart", group: "node", what: "SIGTERM and start of every daemon, one after another", hold: lasting(0, 0), alone: true, inject: rollingRestart},
	{name: "freeze-short", group: "node", what: "SIGSTOP for less than the lease", hold: lasting(.5, 2), inject: freeze},
	{name: "freeze-long", group: "node", what: "SIGSTOP for longer than the lease", hold: lasting(5, 9), inject: freeze},
	{name: "freeze-past-lost-after", group: "node", what: "SIGSTOP for longer than lost_after: its tasks are dead before it ends", hold: lasting(15, 17), inject: freezeLong},
	{name: "strobe", group: "node", what: "SIGSTOP and SIGCONT, again and again", hold: lasting(0, 0), inject: strobe},
	{name: "starve", group: "node", what: "a daemon at the lowest priority beside busy loops", hold: lasting(4, 6), inject: starve},
	{name: "joins-and-leaves", group: "node", what: "five joins and five leaves of a further daemon, half of them kills", hold: lasting(0, 0), alone: true, inject: joinsAndLeaves},
}

// untilPhase waits until a time after a full second.
func untilPhase(at time.Duration) {
	now := time.Now()
	time.Sleep(now.Truncate(time.Second).Add(time.Second + at).Sub(now))
}

func (w *world) startAll(nodes []*node) error {
	var errs []error
	for _, n := range nodes {
		errs = append(errs, w.startNode(n))
	}
	return errors.Join(errs...)
}

func killLeader(w *world, in *injection) (func() error, error) {
	n, err := w.leader()
	if err != nil || n.busy {
		return nil, errors.Join(err, errors.New("the leader is hurt already"))
	}

	in.node, in.note, n.busy = n, n.name, true
	return func() error { return w.startNode(n) }, w.stopNode(n, syscall.SIGKILL)
}

func killTwo(w *world, in *injection) (func() error, error) {
	a, err := w.pick(in)
	if err != nil {
		return nil, err
	}

	b, err := w.pick(in)
	if err != nil {
		return nil, err
	}

	in.note = a.name + " " + b.name

	return func() error { return w.startAll([]*node{a, b}) }, errors.Join(w.stopNode(a, syscall.SIGKILL), w.stopNode(b, syscall.SIGKILL))
}

func killAll(w *world, _ *injection) (func() error, error) {
	all := w.up()
	for _, n := range all {
		w.scrape(n)
		n.exits = true
		_ = n.process.signal(syscall.SIGKILL)
	}

	return func() error { return w.startAll(all) }, nil
}

func rollingRestart(w *world, _ *injection) (func() error, error) {
	for _, n := range w.up() {
		if err := errors.Join(w.stopNode(n, syscall.SIGTERM), w.startNode(n), w.eventually(30*time.Second, n.ready)); err != nil {
			return nil, err
		}
	}

	return func() error { return nil }, nil
}

// freeze stops a daemon. A second fault can make it last longer than lost_after.
func freeze(w *world, in *injection) (func() error, error) {
	n, err := w.pick(in)
	if err != nil {
		return nil, err
	}

	began := time.Now()

	return func() error { return w.thaw(n, began) }, n.process.signal(syscall.SIGSTOP)
}

// freezeLong also checks, before the daemon continues, that its guardian has killed its tasks (G17).
func freezeLong(w *world, in *injection) (func() error, error) {
	n, err := w.pick(in)
	if err != nil {
		return nil, err
	}

	began := time.Now()

	return func() error {
		for _, f := range w.tasksOf(n) {
			if age(f.pid) > lostAfter {
				w.fail("G17", "%s is frozen for longer than lost_after, and its task lives: pid %d, %s", n.name, f.pid, f.command)
			}
		}

		return w.thaw(n, began)
	}, n.process.signal(syscall.SIGSTOP)
}

// thaw lets a frozen daemon continue. If it had sent HTTP requests and was frozen for too long, its guardian has killed
// it, or is about to. Then it is started again, as a service manager does.
func (w *world) thaw(n *node, frozen time.Time) error {
	n.frozenLong = time.Since(frozen) >= lostAfter/2
	err := n.process.signal(syscall.SIGCONT)

	if n.process.running() || !n.frozenLong {
		return err // a daemon that has ended this early has ended by itself
	}

	return w.restartKilled(n)
}

// restartKilled starts a daemon again that its guardian has killed.
func (w *world) restartKilled(n *node) error {
	n.frozenLong = false
	w.say("the guardian of %s has killed its daemon", n.name)

	return w.startNode(n)
}

func strobe(w *world, in *injection) (func() error, error) {
	n, err := w.pick(in)
	for range 10 {
		err = errors.Join(err, n.process.signal(syscall.SIGSTOP))
		time.Sleep(time.Duration(200+in.rnd.IntN(600)) * time.Millisecond)
		err = errors.Join(err, n.process.signal(syscall.SIGCONT))
		time.Sleep(time.Duration(20+in.rnd.IntN(200)) * time.Millisecond)
	}

	return func() error { return nil }, err
}

func starve(w *world, in *injection) (func() error, error) {
	n, err := w.pick(in)
	if err != nil {
		return nil, err
	}

	var loops []*process
	nice := func(to int) error {
		return eachThread(n.process.pid(), func(tid int) error { return unix.Setpriority(unix.PRIO_PROCESS, tid, to) })
	}

	heal := func() error {
		for _, l := range loops {
			_ = l.end(syscall.SIGKILL, 5*time.Second)
		}
		return nice(0)
	}

	for range 2 * runtime.NumCPU() {
		p, err := launch(w.logs+"/busy.log", w.environ(), "/bin/sh", "-c", "while :; do :; done")
		if err != nil {
			return nil, errors.Join(err, heal())
		}
		loops = append(loops, p)
	}

	return heal, nice(19)
}

// joinsAndLeaves lets an additional node join and leave. At the end the nodes are the same as before.
func joinsAndLeaves(w *world, in *injection) (func() error, error) {
	extra := w.extra
	if extra == nil {
		var err error
		if extra, err = w.addNode(len(w.nodes) + 1); err != nil {
			return nil, err
		}
		if err := w.connect(); err != nil {
			return nil, err
		}

		w.extra = extra
	}

	for i := range 5 {
		if err := w.startNode(extra); err != nil {
			return nil, err
		}
		if err := w.eventually(30*time.Second, extra.ready); err != nil {
			return nil, fmt.Errorf("join: %w", err)
		}

		time.Sleep(time.Duration(in.rnd.IntN(1000)) * time.Millisecond)

		if err := w.stopNode(extra, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2]); err != nil {
			return nil, err
		}
	}

	return func() error { return nil }, nil
}
