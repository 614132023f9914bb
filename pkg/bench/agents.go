package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/clock"
)

// agents are daemons in separate processes, started as carillon agent.
type agents struct {
	dir   string
	flags []string          // the same for all agents
	nodes map[string]*agent // those that run, by name
}

// agent is one process.
type agent struct {
	cmd    *exec.Cmd
	listen string
	stdin  io.Writer     // see answerCollect
	stdout *bufio.Reader // its answers
	ended  chan struct{} // closed when the process has ended
}

// agentTimeout is how long an agent may take to become ready, or to end. With a million tasks on a busy machine, it
// takes a minute to become ready.
const agentTimeout = 5 * time.Minute

func newAgents(s *etcdTarget, lease time.Duration) *agents {
	return &agents{dir: s.dir, nodes: map[string]*agent{}, flags: []string{
		"--etcd-endpoints", strings.Join(s.cfg.Endpoints, ","), "--etcd-user", s.cfg.Username, "--prefix", strings.TrimSuffix(s.keys.Root(), "/"),
		"--lease-ttl", lease.String(), "--log-level", "warn",
	}}
}

var (
	errEnded = errors.New("it has ended")
	// errTaken means that another process has taken an address that was free a moment ago.
	errTaken = errors.New("its address is taken")
)

// maxAddresses is how many addresses are tried for an agent.
const maxAddresses = 5

// startAgent starts an agent on the data directory that it had before, and waits until it is ready.
func (a *agents) startAgent(ctx context.Context, name string) (err error) {
	for range maxAddresses {
		if err = a.startOnce(ctx, name); !errors.Is(err, errTaken) {
			break
		}
	}

	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}

	return nil
}

// startOnce starts an agent on a free address. The error contains the agent's log.
func (a *agents) startOnce(ctx context.Context, name string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}

	listen, err := freeAddress()
	if err != nil {
		return err
	}

	dir := filepath.Join(a.dir, name)
	args := append([]string{"agent", "--name", name, "--data-dir", dir, "--listen", listen}, a.flags...)
	n := &agent{cmd: exec.Command(exe, args...), listen: listen, ended: make(chan struct{})}
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C on the terminal must reach only this process

	log, err := os.OpenFile(dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}

	defer log.Close()

	// before is where the output of this start begins: the log may contain that of earlier ones.
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}

	n.cmd.Stderr = log

	stdout, err := n.cmd.StdoutPipe()
	if err == nil {
		n.stdout = bufio.NewReader(stdout)
		n.stdin, err = n.cmd.StdinPipe()
	}
	if err == nil {
		err = n.cmd.Start()
	}
	if err != nil {
		return err
	}

	a.nodes[name] = n
	go func() {
		_ = n.cmd.Wait()
		close(n.ended)
	}()

	if err := awaitReady(ctx, n.url(), n.ended); err != nil {
		said, _ := os.ReadFile(dir + ".log")

		// Try another address only if the agent has ended, so that none keeps running unnoticed.
		if errors.Is(err, errEnded) && bytes.Contains(said[min(before, int64(len(said))):], []byte(syscall.EADDRINUSE.Error())) {
			err = errors.Join(errTaken, err)
		}

		return fmt.Errorf("%w\n%s", err, said)
	}

	return nil
}

func (a *agent) url() string { return "http://" + a.listen }

// awaitReady waits until a node reports that it is ready, which means that it fires ticks. ended is closed when it ends.
func awaitReady(ctx context.Context, url string, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(ctx, agentTimeout, errors.New("it is not ready in time"))
	defer cancel()

	for clock.Sleep(ctx, 10*time.Millisecond) {
		select {
		case <-ended:
			return errEnded
		default:
		}

		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			return err
		}

		res, err := http.DefaultClient.Do(req)
		if err != nil {
			continue
		}

		res.Body.Close()

		if res.StatusCode == http.StatusOK {
			return nil
		}
	}

	return context.Cause(ctx)
}

// signalAndWait sends an agent a signal that ends it, and waits for its end.
func (a *agents) signalAndWait(ctx context.Context, name string, s syscall.Signal) error {
	n := a.nodes[name]
	if n == nil {
		return fmt.Errorf("there is no %s", name)
	}

	delete(a.nodes, name)

	return n.endProcess(ctx, s)
}

// endProcess kills the process if the signal does not end it within agentTimeout.
func (a *agent) endProcess(ctx context.Context, s syscall.Signal) error {
	if err := a.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}

	select {
	case <-a.ended:
		return nil
	case <-ctx.Done():
	case <-time.After(agentTimeout):
	}

	_ = a.cmd.Process.Kill()
	<-a.ended

	return fmt.Errorf("%s did not end on %s", a.cmd.Args[3], s)
}

// cpuTime returns the CPU time that the process has used.
func (a *agent) cpuTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(int32(^a.cmd.Process.Pid<<3|2), &t) // the clock of clock_getcpuclockid(3)

	return time.Duration(t.Nano()), err
}

// cpuTimeOf returns the CPU time that the process uses while do runs.
func (a *agent) cpuTimeOf(do func() error) (time.Duration, error) {
	before, err := a.cpuTime()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}

	after, err := a.cpuTime()

	return after - before, err
}

// residentMemory returns the resident memory of the process in bytes.
func (a *agent) residentMemory() int64 {
	kib, _, _ := strings.Cut(fileField(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid), "VmRSS", ":"), " ")
	n, _ := strconv.ParseInt(kib, 10, 64)

	return n << 10
}

// collectGarbage lets the process collect its garbage and return free memory to the system. If profile is not "", the
// process writes a profile of its heap to that file.
func (a *agent) collectGarbage(profile string) error {
	if _, err := fmt.Fprintln(a.stdin, profile); err != nil {
		return err
	}

	if answer, err := a.stdout.ReadString('\n'); err != nil || answer != "\n" {
		return errors.Join(err, errors.New(strings.TrimSpace(answer)))
	}

	return nil
}

// answerCollect is the other end of collectGarbage, in the agent: for each line that it reads, it collects the garbage and
// writes a line, which contains the error if there is one.
func answerCollect(in io.Reader, out io.Writer) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		debug.FreeOSMemory()
		debug.FreeOSMemory() // the first one may find finalizers to run

		answer := ""
		if err := heapProfile(lines.Text()); err != nil {
			answer = err.Error()
		}

		fmt.Fprintln(out, answer)
	}
}

// stopAll ends all agents. It also works after ctx has ended.
func (a *agents) stopAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), agentTimeout)
	defer cancel()

	var errs []error
	for name := range a.nodes {
		errs = append(errs, a.signalAndWait(ctx, name, syscall.SIGTERM))
	}

	http.DefaultClient.CloseIdleConnections()

	return errors.Join(errs...)
}

// freeAddress returns an address of the loopback interface that is free at the moment.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}

	defer l.Close()

	return l.Addr().String(), nil
}
