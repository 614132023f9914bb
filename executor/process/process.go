package process

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/executor/status"
	"github.com/carillonhq/carillon/executor/workdir"
	"github.com/carillonhq/carillon/pkg/task"
)

// preparedAttempt is everything that is needed to start one attempt.
type preparedAttempt struct {
	process   *task.Process      // bound by the node's policy, with the variables of env_from
	args      []string           // the arguments of a shell line
	env       []string           // the whole environment; may contain secrets, so it is dropped after the fork
	stdin     *os.File           // nil: empty
	as        account            // the user and the groups that the process runs with
	timeout   time.Duration      // 0: none
	grace     time.Duration      // kill_grace of the task, from the signal to SIGKILL
	path      string             // file name of the output
	workdir   *workdir.Dir       // nil: none could be prepared
	noWorkdir error              // why there is no workdir
	bound     *confinement       // limits and other settings that apply before the first instruction
	scratch   string             // the scratch directory in the workdir; "": none
	status    *status.Attempt    // what the attempt reports; nil without a workdir
	output    task.Output        // the limits of the output
	guarded   guardian.Attempt   // what the guardian receives before the fork
	mayStart  func() error       // called directly before the fork; an error forbids it
	judge     *policyJudge       // checks the program against the node's policy; nil: no policy
	onStarted func(at time.Time) // called once the program executes
	onPause   func(PauseState)   // called when the processes stop, continue, or cannot be stopped
	signal    syscall.Signal     // the task's kill_signal
	success   *successRule       // decides whether the attempt succeeded
	hidden    *mask.Masker       // the values of secrets that are masked in the output
}

// prepareAttempt collects what an attempt needs. It fails if the attempt's settings cannot be
// applied on this host. The caller must pass the result to runPrepared, which releases the
// working directory.
func (ru *Runner) prepareAttempt(a task.Assigned, token int64) (preparedAttempt, error) {
	path, err := ru.spool.Path(a.Namespace, a.Task, a.ID, max(a.Attempt, 1))
	if err != nil {
		return preparedAttempt{}, err
	}

	as, err := ru.account(a.Action.Process)
	if err != nil {
		return preparedAttempt{}, err
	}

	// Settings that this host cannot enforce fail the attempt here, before anything of it exists, unless the task
	// asks only for a report.
	bound, err := planConfinement(a.Action.Process, as)
	if err == nil {
		bound.checkGroupLimits(ru.groups, a.Action.Process.Limits)
		err = bound.requiredError()
	}

	if err != nil {
		return preparedAttempt{}, err
	}

	success, err := newSuccessRule(a.Success)
	if err != nil {
		return preparedAttempt{}, err
	}

	// Last, because the caller has to return the directory. Without one the attempt still runs, but it cannot report
	// its status.
	room, noRoom := ru.workdirs.Take(as.credential)
	if noRoom != nil {
		ru.log.Warn("an attempt runs without its own directory", zap.String("run", a.ID), zap.Error(noRoom))
	}

	return preparedAttempt{
		signal: killSignal(a.KillSignal), success: success, output: a.Output,
		process: a.Action.Process, args: a.Args, env: append(buildEnvironment(a, token, ru.node, as), statusEnv(&a, room)...), as: as, path: path,
		workdir: room, noWorkdir: noRoom, bound: bound, status: ru.beginStatus(&a, room),
		timeout: a.Timeout.Std(), grace: a.KillGrace.Std(), hidden: &mask.Masker{},
		guarded:  guardian.Attempt{Mark: proctree.Mark{Namespace: a.Namespace, Task: a.Task, RunID: a.ID, Token: token}},
		mayStart: func() error { return nil },
	}, nil
}

// runPrepared starts an attempt and returns when nothing is left of it (G20): neither the main
// process nor its group, nor, if the attempt was killed, processes that had left the group.
func (ru *Runner) runPrepared(what preparedAttempt, o *Orders) Result {
	out := ru.spool.NewOutput(what.path, what.output)

	out.HideValues(what.hidden)

	if what.success.needsOutput() {
		what.success.mask = what.hidden.Apply
		out.MatchLines(what.success)
	}

	defer out.Close()
	defer what.closeStdin()

	err := ru.prepareWorkdir(&what)
	var p *runningProcess
	if err == nil {
		p, err = ru.startProcess(what, out, o)
	}

	if err != nil {
		r := notStarted(err)
		_ = what.releaseWorkdir(&r) // the pool logs an error
		return r
	}

	// The process has its copy by now. The runner's copy may contain secrets.
	p.dropEnvironment(&what)

	if what.onStarted != nil {
		what.onStarted(p.started)
	}

	r := p.waitForMain(what, o)
	// Message contains one problem. The message about the outcome comes first; each of the following
	// applies only if there is none yet.
	printed := out.Summary()
	r.OutputBytes, r.Truncated, r.Tail = printed.Bytes, printed.Truncated, printed.Tail
	if printed.Err != nil && r.Message == "" {
		r.Message = "output is not kept: " + printed.Err.Error()
	}

	if err := what.releaseWorkdir(&r); err != nil && r.Message == "" {
		r.Message = err.Error()
	}

	var lacks string
	if r.Unenforced, lacks = what.bound.unenforcedFields(); r.Message == "" {
		r.Message = lacks
	}

	r.Message = what.hidden.Apply(r.Message) // it may quote a line of the output

	return r
}

// beginStatus starts to watch the attempt's status file. It returns nil if the attempt has no
// working directory.
func (ru *Runner) beginStatus(a *task.Assigned, m *workdir.Dir) *status.Attempt {
	if m == nil {
		return nil
	}
	return ru.statuses.Watch(a, status.File{Dir: m.FD(), Name: workdir.StatusFile, UID: m.UID()})
}

// releaseWorkdir returns the attempt's working directory to the pool, after it has read the
// attempt's last reports.
func (p *preparedAttempt) releaseWorkdir(r *Result) error {
	return p.workdir.Release(func(wrote bool) { r.Status = p.status.End(wrote) })
}

// statusEnv returns the variables that name the attempt's status file and contain the checkpoint of the previous
// attempt.
func statusEnv(a *task.Assigned, m *workdir.Dir) (env []string) {
	if m != nil {
		env = append(env, "CARILLON_STATUS_FILE="+filepath.Join(m.Path(), workdir.StatusFile))
	}

	if a.Checkpoint != "" {
		env = append(env, "CARILLON_CHECKPOINT="+a.Checkpoint)
	}

	return env
}

// notStarted returns the result of an attempt whose program was not executed because of
// err.
func notStarted(err error) Result {
	r := Result{State: task.Failed, Reason: task.ReasonStart, Message: err.Error(), EndedAt: time.Now(), HandBack: errors.Is(err, errNoPolicy)}

	switch {
	case errors.Is(err, errStuck):
		r.Reason = task.ReasonStuck
	case errors.Is(err, errStartTimeout):
		r.State, r.Reason = task.TimedOut, task.ReasonTimeout
	}

	r.NotStarted = r.HandBack || errors.Is(err, errCalledOff) || errors.Is(err, ErrTooLate)
	if _, ok := errors.AsType[unenforceableError](err); ok {
		r.Reason = task.ReasonHost
	}

	if reason, is := isRefusal(err); is {
		r.Reason = reason
	}

	return r
}

// runningProcess is an attempt whose process has been started. One goroutine, that of RunAttempt, owns it.
type runningProcess struct {
	*Runner
	spawnRequest
	tree proctree.Tree // all processes of the attempt
	// killedAtStart is set if the process was killed when it had just executed its program. The attempt then counts
	// as run.
	killedAtStart Kill
	out           *spool.Output // the output file
	pipe          *spool.Pipes  // the read ends of stdout and stderr
	drained       chan struct{} // closed when nothing reads the pipe any more
}

// hasReason reports whether notStarted gives an error a more specific result than a failure to start.
func hasReason(err error) bool {
	for _, known := range []error{errCalledOff, ErrTooLate, errStuck, errStartTimeout} {
		if errors.Is(err, known) {
			return true
		}
	}

	return false
}

// closedChannel is always ready. It stands for a process that has already ended.
var closedChannel = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// resolvedProgram is the program that an attempt executes, and its working directory.
type resolvedProgram struct {
	program, dir string       // absolute, or relative to the working directory
	argv         []string     // argv[0] is the name as the task spells it
	may          func() error // called directly before the fork; an error forbids it
}

// findProgram looks up the program and the working directory, with a time limit, because a user may
// have put these paths on a file system that does not answer.
func (ru *Runner) findProgram(prep *preparedAttempt, o *Orders) (resolvedProgram, error) {
	w := *prep // the goroutine may outlive the attempt
	return runWithTimeout(ru.stuck, o.given, prep.timeout, "to find its program and its working directory", func() (resolvedProgram, error) { return w.lookUp() })
}

// lookUp returns the program, its arguments and the working directory. It touches paths of the user, so it may hang.
func (p *preparedAttempt) lookUp() (f resolvedProgram, err error) {
	if f.dir, err = workDir(cmp.Or(p.process.Dir, p.scratch), p.as); err != nil {
		return resolvedProgram{}, err
	}

	f.argv = p.process.Command
	if len(f.argv) == 0 {
		f.argv = []string{cronShell, "-c", p.process.Shell}
		// The words after the line become $0, $1 and so on. They are never parsed as text of the shell.
		if len(p.args) > 0 {
			f.argv = append(append(f.argv, cronShell), p.args...)
		}
	}

	if f.program, err = lookPath(f.argv[0], lookupEnv(p.env, "PATH"), f.dir); err != nil {
		return resolvedProgram{}, err
	}
	if tmp := task.PrivateDir(f.program); p.bound.private && tmp != "" {
		return resolvedProgram{}, fmt.Errorf("program %s does not exist: with private_tmp, %s is empty when the process starts", task.Quote(f.program), tmp)
	}

	f.program, f.may, err = p.judgeProgram(f.program, f.dir)

	return f, err
}

// startProcess starts the attempt's process and returns when it executes its program. After an error no instruction of
// the program has been executed and none will be. A process that hangs before its program may remain; it is killed and
// holds no descriptor of the daemon.
func (ru *Runner) startProcess(what preparedAttempt, out *spool.Output, o *Orders) (*runningProcess, error) {
	found, err := ru.findProgram(&what, o)
	if err != nil {
		return nil, err
	}

	// All that must exist before the fork is acquired first: the pipe, the control group, and an entry at the
	// guardian. Each error path releases what was acquired before it.
	pipe, w, errs, err := spool.NewPipes(what.output.Apart())
	if err != nil {
		return nil, startFailure(err, found.argv[0], found.dir)
	}

	group, err := ru.takeGroup(what.bound, what.process.Limits)
	if err != nil {
		spool.CloseWriters(w, errs)
		pipe.Close()
		return nil, err
	}

	var stdin uintptr
	if what.stdin != nil {
		stdin = what.stdin.Fd()
	}

	what.guarded.Group = group.Dir()
	p := &runningProcess{Runner: ru, out: out, pipe: pipe, drained: make(chan struct{}), spawnRequest: spawnRequest{
		program: found.program, argv: found.argv, env: what.env, dir: found.dir, as: what.as.credential, stdin: stdin, output: uintptr(w), errput: uintptr(errs), may: found.may,
		bound: what.bound, workdir: what.workdir.Path(),
		group:   group,
		guarded: ru.guardian.Announce(what.guarded),
	}}
	p.tree = proctree.Tree{Mark: what.guarded.Mark, Group: group, Orphans: ru.orphans}
	p.traced = &p.tree
	// Retry until a guardian that knows this attempt is present at the fork (G17), and until
	// the policy under which the program was judged is still the current one.
	for err = guardian.ErrNotReady; errors.Is(err, guardian.ErrNotReady) || errors.Is(err, errPolicyChanged); {
		if errors.Is(err, errPolicyChanged) {
			// The new policy may allow another program, or none. Judge it again.
			if found, err = ru.findProgram(&what, o); err != nil {
				break
			}
			p.program, p.may = found.program, found.may
		}

		// Without a guardian the attempt waits, for as long as it takes: if the daemon died now, nothing
		// would kill the process.
		if !ru.guardian.WaitReady(o.given) {
			err = errCalledOff
			break
		}

		err = ru.spawner.startOn(&p.spawnRequest, o.given)
	}

	// The process has its own copies. The pipe ends when the last process closes its copy.
	spool.CloseWriters(w, errs)
	what.closeStdin()
	gone := closedChannel
	if err == nil {
		gone, err = p.awaitExecution(what.timeout, o)
	}

	if p.tree.PID == 0 { // Orphans, which set it otherwise, are not used
		p.tree.PID = p.pid
	}

	if err != nil {
		pipe.Close()
		// The guardian's entry and the control group are released only when the process has ended.
		end := func() {
			p.guarded.Ended()
			p.endTree()
		}

		select {
		case <-gone:
			end()
		default: // the process hangs in the kernel, perhaps forever: do not wait for it
			go func() {
				<-gone
				end()
			}()
		}

		_, refused := isRefusal(err)
		if _, cannot := errors.AsType[unenforceableError](err); cannot || refused || hasReason(err) {
			return nil, err
		}

		return nil, startFailure(err, found.program, found.dir)
	}

	// A process may have failed to join its group although the task accepts that. Then the group does not find it,
	// and the tree uses the other ways.
	if group != nil && !group.Holds() {
		ru.groups.Release(group)
		p.tree.Group = nil
	}

	// With a control group, no process of the attempt can be lost, so its orphans need not be tracked.
	if p.tree.Group != nil {
		ru.orphans.Forget(&p.tree)
	}

	go func() {
		defer close(p.drained)
		pipe.CopyTo(out)
	}()

	return p, nil
}

// setNonblocking sets O_NONBLOCK, which the runtime's poller requires. It clears all other status flags; the descriptor
// must have none.
func setNonblocking(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK)
	return os.NewSyscallError("fcntl", err)
}

// killSignal returns the signal of that name, or SIGTERM if there is none.
func killSignal(name string) syscall.Signal {
	return cmp.Or(unix.SignalNum(name), unix.SIGTERM)
}

// prepareWorkdir creates the directories that the attempt requests in its working directory.
func (ru *Runner) prepareWorkdir(prep *preparedAttempt) error {
	if prep.process.Scratch {
		path, err := prep.workdir.MakeScratch(prep.noWorkdir)
		if err != nil {
			if err = prep.bound.addUnsupported("scratch", "%s", err); err != nil {
				return err
			}
		} else {
			prep.env = append(prep.env, "CARILLON_SCRATCH="+path)
			prep.scratch = path
		}
	}

	if prep.bound.private {
		if err := prep.workdir.MakePrivate(prep.noWorkdir); err != nil {
			prep.bound.private = false
			return prep.bound.addUnsupported("private_tmp", "%s", err)
		}
	}

	return nil
}
