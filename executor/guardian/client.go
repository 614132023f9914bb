package guardian

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	startLimit = 2 * time.Minute // time limit for a new guardian to be ready; the previous one may hold the lock while it kills, for up to killLimit
	writeLimit = 5 * time.Second // a guardian that does not read for this long counts as dead
	leaveLimit = 5 * time.Second // time limit for a guardian to exit after a bye
)

// Config configures a Client. Hello is sent to each guardian.
type Config struct {
	Hello
	// Command starts a process that runs Serve; nil means this
	// program with the argument "guardian".
	Command []string
	Env     []string // the environment of the guardian; nil: the daemon's

	Orphans *proctree.Orphans // the executor's, which must not reap the guardian as an orphan

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none
}

// Client is the daemon's side of the guardian. No attempt starts before the
// guardian has received it. If the guardian dies, the Client starts another one and sends it
// all attempts; until then, no attempt starts. The methods may be called from any goroutine. Those that an executor
// calls (all except Run and Attach) do nothing and report success if the Client is nil.
type Client struct {
	cfg      Config
	log      *zap.Logger
	restarts prometheus.Counter
	next     atomic.Uint64 // the last number given to an attempt

	mu     sync.Mutex    // held while writing to the pipe, so that messages keep their order
	watch  watchList     // everything that the guardian has to know, for the next one
	remote remoteCounts  // the HTTP attempts in progress
	unsent []byte        // messages that are not in the pipe yet
	pipe   *os.File      // to the guardian; nil while no guardian runs
	up     chan struct{} // closed while there is a guardian
	down   wake.Signal   // set when a write to the pipe has failed
}

// NewClient returns a Client without a guardian. Run starts one.
func NewClient(cfg Config) *Client {
	g := &Client{
		cfg: cfg, log: cmp.Or(cfg.Logger, zap.NewNop()).Named("guardian"), watch: newWatchList(), remote: remoteCounts{},
		up: make(chan struct{}), down: wake.NewSignal(),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_guardian_restarts_total", Help: "Guardians that were started because the previous one had ended."}),
	}

	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(g.restarts)
	}

	return g
}

// Run keeps a guardian running until ctx ends, and then dismisses it. The caller must end ctx only after
// Executor.Run has returned, because a dismissed guardian kills the attempts that are still alive.
// Run always returns nil.
func (c *Client) Run(ctx context.Context) error {
	// The pause between starts doubles from 100 ms to 5 s, and starts over after a guardian that ran for a minute.
	pause := 50 * time.Millisecond
	for first := true; ctx.Err() == nil; first = false {
		if !first {
			c.restarts.Inc()
		}

		began := time.Now()
		err := c.runProcess(ctx)

		if ctx.Err() != nil {
			return nil
		}

		c.log.Error("the guardian exited; starting another one", zap.Error(err))

		if pause = min(2*pause, 5*time.Second); time.Since(began) > time.Minute {
			pause = 100 * time.Millisecond
		}

		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}

	return nil
}

// guardianVariable in the environment marks a guardian. Without it, a program that does not
// implement the command "guardian", such as a test binary, would start itself again and again.
const guardianVariable = "CARILLON_IS_GUARDIAN"

// runProcess starts one guardian and returns when it has exited. It returns nil if ctx ended and the guardian
// exited after a bye, and otherwise the reason why the guardian was killed or has exited.
func (c *Client) runProcess(ctx context.Context) error {
	argv := c.cfg.Command
	if len(argv) == 0 {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		if os.Getenv(guardianVariable) != "" {
			return errors.New("this process is a guardian and cannot start one")
		}

		argv = []string{self, "guardian"}
	}

	cmd := exec.Command(argv[0], argv[1:]...)
	env := c.cfg.Env
	if env == nil {
		env = os.Environ()
	}

	cmd.Env = append(slices.Clone(env), guardianVariable+"=1")
	cmd.Stderr = os.Stderr
	// In its own session, the guardian receives no signals that are sent to the daemon's terminal or process group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	r, w, err := os.Pipe()
	if err != nil {
		return err
	}

	defer w.Close()

	cmd.Stdin = r
	answers, err := cmd.StdoutPipe()
	// Under the lock, Orphans cannot reap the guardian before Born has registered it.
	c.cfg.Orphans.Lock()
	if err == nil {
		err = cmd.Start()
	}

	if err == nil {
		c.cfg.Orphans.Born(cmd.Process.Pid, nil, proctree.Birth{})
	}
	c.cfg.Orphans.Unlock()

	r.Close()

	if err != nil {
		return fmt.Errorf("start guardian: %w", err)
	}

	answered := make(chan string, 1)
	ended := make(chan error, 1)
	go func() {
		line, _ := bufio.NewReader(answers).ReadString('\n')
		answered <- strings.TrimSpace(line)
		_, _ = io.Copy(io.Discard, answers)
		// cmd.Wait reaps outside the lock. If the process number is reused in between, Orphans do not miss that
		// process: they recognize an attempt's process by its process group.
		err := cmd.Wait()
		c.cfg.Orphans.Lock()
		c.cfg.Orphans.Reaped(cmd.Process.Pid)
		c.cfg.Orphans.Unlock()

		ended <- err
	}()

	if err = c.superviseGuardian(ctx, w, answered, ended); err == nil {
		c.dismissGuardian(Message{Bye: true}, w)

		select {
		case <-ended:
			return nil
		case <-time.After(leaveLimit):
		}
	}

	// Kill the guardian before the pipe is closed. A guardian that is only slow would take the
	// end of the pipe for the death of the daemon, and kill all attempts.
	_ = cmd.Process.Kill()
	<-ended
	c.dismissGuardian(Message{}, w)

	return err
}

// superviseGuardian sends the Hello, waits until the guardian is ready, sends it all attempts, and then waits. It
// returns nil if ctx has ended, so that the guardian should be dismissed, and otherwise the reason to kill it.
func (c *Client) superviseGuardian(ctx context.Context, w *os.File, answered <-chan string, ended chan error) error {
	hello := c.cfg.Hello
	hello.PID = os.Getpid()
	if err := writePipe(w, appendLine(nil, hello)); err != nil {
		return err
	}

	select {
	case <-ctx.Done():
		return nil
	case <-time.After(startLimit):
		return errors.New("the guardian did not become ready")
	case said := <-answered:
		if said != readyAnswer {
			return fmt.Errorf("the guardian did not become ready: %q", said)
		}
	}

	if err := c.Attach(w); err != nil {
		return err
	}

	select {
	case <-ctx.Done():
		return nil
	case <-c.down:
		return errors.New("the guardian is not listening")
	case err := <-ended:
		// Put it back for runProcess, which waits for the same channel.
		ended <- err
		return fmt.Errorf("the guardian exited: %w", err)
	}
}

// Attach sends all attempts and sessions to a new guardian through w. If it returns nil, attempts may start again.
func (c *Client) Attach(w *os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	var all []byte
	for _, x := range append(c.watch.catchUpMessages(), Message{All: true}) {
		all = appendLine(all, x)
	}

	if err := writePipe(w, all); err != nil {
		return err
	}

	c.unsent = c.unsent[:0]
	select {
	case <-c.down: // set for the previous guardian
	default:
	}

	c.pipe = w
	close(c.up)
	c.log.Info("started the guardian", zap.Int("attempts", len(c.watch.attempts)))

	return nil
}

// dismissGuardian detaches a guardian, so that no attempt starts. If last is a bye, it is sent with the messages
// that are still unsent, and the pipe is closed.
func (c *Client) dismissGuardian(last Message, w *os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if last.Bye {
		_ = writePipe(w, appendLine(c.unsent, last))
		w.Close()
	}

	c.detachGuardian()
}

// detachGuardian notes that there is no guardian. The caller holds mu.
func (c *Client) detachGuardian() {
	if c.pipe != nil {
		c.pipe, c.up = nil, make(chan struct{})
	}
	c.unsent = c.unsent[:0] // the next guardian receives the whole watch list
}
