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
	startLimit = 2 * time.Minute // until it is ready: an older one may still be killing
	writeLimit = 5 * time.Second // a guardian that does not read is as good as dead
	leaveLimit = 5 * time.Second
)

// Config says how to start a node's guardian.
type Config struct {
	Hello
	// Command starts a process whose body is Serve; nil is this very
	// program with the argument "guardian".
	Command []string
	Env     []string // nil is the daemon's own

	Orphans *proctree.Orphans // of which it is none; those of the executor

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none
}

// Client is the daemon's side of its guardian. No attempt starts before the
// guardian knows of it. If the guardian dies, another one is started and told of
// all attempts; until then none starts.
type Client struct {
	cfg      Config
	log      *zap.Logger
	restarts prometheus.Counter
	next     atomic.Uint64

	mu     sync.Mutex
	watch  watchList
	unsent []byte        // messages that are not in the pipe yet
	pipe   *os.File      // to the guardian; nil while there is none
	up     chan struct{} // closed while there is one
	down   wake.Signal   // writing failed
}

// NewClient makes a guardian. Run starts it.
func NewClient(cfg Config) *Client {
	g := &Client{
		cfg: cfg, log: cmp.Or(cfg.Logger, zap.NewNop()).Named("guardian"), watch: newWatchList(),
		up: make(chan struct{}), down: wake.NewSignal(),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_guardian_restarts_total", Help: "Guardians that were started because the previous one had ended."}),
	}

	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(g.restarts)
	}

	return g
}

// Run keeps a guardian alive until ctx ends, and then tells it to leave. It is
// to outlive Executor.Run: attempts that are still alive then are killed.
func (g *Client) Run(ctx context.Context) error {
	pause := 50 * time.Millisecond
	for first := true; ctx.Err() == nil; first = false {
		if !first {
			g.restarts.Inc()
		}

		began := time.Now()
		err := g.runProcess(ctx)

		if ctx.Err() != nil {
			return nil
		}

		g.log.Error("the guardian exited; starting another one", zap.Error(err))

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

// guardianVariable in the environment says that a process is a guardian. A program
// that does not know the word "guardian", such as the binary of a test, would
// otherwise start itself again and again.
const guardianVariable = "CARILLON_IS_GUARDIAN"

// runProcess starts one guardian and sees it to its end.
func (g *Client) runProcess(ctx context.Context) error {
	argv := g.cfg.Command
	if len(argv) == 0 {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		if os.Getenv(guardianVariable) != "" {
			return errors.New("this process was started as a guardian: it starts none")
		}

		argv = []string{self, "guardian"}
	}

	cmd := exec.Command(argv[0], argv[1:]...)
	env := g.cfg.Env
	if env == nil {
		env = os.Environ()
	}

	cmd.Env = append(slices.Clone(env), guardianVariable+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal's and no group's signals reach it

	r, w, err := os.Pipe()
	if err != nil {
		return err
	}

	defer w.Close()

	cmd.Stdin = r
	answers, err := cmd.StdoutPipe()
	g.cfg.Orphans.Lock()
	if err == nil {
		err = cmd.Start()
	}

	if err == nil {
		g.cfg.Orphans.Born(cmd.Process.Pid, nil, proctree.Birth{})
	}
	g.cfg.Orphans.Unlock()

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
		err := cmd.Wait()
		g.cfg.Orphans.Lock() // a number that is another's so soon is not missed: it is told by its group
		g.cfg.Orphans.Reaped(cmd.Process.Pid)
		g.cfg.Orphans.Unlock()

		ended <- err
	}()

	if err = g.superviseGuardian(ctx, w, answered, ended); err == nil {
		g.dismissGuardian(Message{Bye: true}, w)

		select {
		case <-ended:
			return nil
		case <-time.After(leaveLimit):
		}
	}

	// It must be dead before the pipe is closed: to a guardian that is merely
	// slow, the end of the pipe would mean that the daemon is dead.
	_ = cmd.Process.Kill()
	<-ended
	g.dismissGuardian(Message{}, w)

	return err
}

// superviseGuardian greets a guardian and stays with it. nil: ctx ended, it is to leave.
func (g *Client) superviseGuardian(ctx context.Context, w *os.File, answered <-chan string, ended chan error) error {
	if err := writePipe(w, appendLine(nil, g.cfg.Hello)); err != nil {
		return err
	}

	select {
	case <-ctx.Done():
		return nil
	case <-time.After(startLimit):
		return errors.New("the guardian does not get ready")
	case said := <-answered:
		if said != readyAnswer {
			return fmt.Errorf("the guardian does not get ready: %q", said)
		}
	}

	if err := g.Attach(w); err != nil {
		return err
	}

	select {
	case <-ctx.Done():
		return nil
	case <-g.down:
		return errors.New("the guardian does not listen")
	case err := <-ended:
		ended <- err
		return fmt.Errorf("the guardian is gone: %w", err)
	}
}

// Attach tells a new guardian of all attempts and lets new ones start.
func (g *Client) Attach(w *os.File) error {
	g.mu.Lock()
	defer g.mu.Unlock()

	var all []byte
	for _, x := range append(g.watch.messages(), Message{All: true}) {
		all = appendLine(all, x)
	}

	if err := writePipe(w, all); err != nil {
		return err
	}

	g.unsent = g.unsent[:0]
	select {
	case <-g.down: // said of the one before
	default:
	}

	g.pipe = w
	close(g.up)
	g.log.Info("started the guardian", zap.Int("attempts", len(g.watch.attempts)))

	return nil
}

// dismissGuardian ends a guardian's service. With a bye the pipe is closed, too.
func (g *Client) dismissGuardian(last Message, w *os.File) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if last.Bye {
		_ = writePipe(w, appendLine(g.unsent, last))
		w.Close()
	}

	g.detachGuardian()
}

// detachGuardian notes that there is no guardian any more. mu is held.
func (g *Client) detachGuardian() {
	if g.pipe != nil {
		g.pipe, g.up = nil, make(chan struct{})
	}
	g.unsent = g.unsent[:0] // the next one is told all
}
