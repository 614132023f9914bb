package bench

import (
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
	"strings"
	"syscall"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
)

// agents are daemons, each a process of its own, as carillon agent starts them.
type agents struct {
	dir   string
	flags []string // of all
	nodes map[string]*agent
}

type agent struct {
	cmd    *exec.Cmd
	listen string
	ended  chan struct{}
}

// agentPatience is how long an agent may take to be ready, or to end.
const agentPatience = time.Minute

func newAgents(s *site, lease time.Duration) *agents {
	return &agents{dir: s.dir, nodes: map[string]*agent{}, flags: []string{
		"--etcd-endpoints", strings.Join(s.cfg.Endpoints, ","), "--etcd-user", s.cfg.Username, "--prefix", strings.TrimSuffix(s.keys.Root(), "/"),
		"--lease-ttl", lease.String(), "--log-level", "warn",
	}}
}

var (
	errEnded = errors.New("it has ended")
	// errTaken means that somebody else has an address by now that was free a moment ago.
	errTaken = errors.New("its address is taken")
)

// maxAddresses is how many are tried for an agent.
const maxAddresses = 5

// startAgent starts an agent, on the data that it had before, and waits until it is ready.
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
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is its parent's affair

	log, err := os.OpenFile(dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}

	defer log.Close()

	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}

	n.cmd.Stdout, n.cmd.Stderr = log, log
	if err := n.cmd.Start(); err != nil {
		return err
	}

	a.nodes[name] = n
	go func() {
		_ = n.cmd.Wait()
		close(n.ended)
	}()

	if err := n.awaitReady(ctx); err != nil {
		said, _ := os.ReadFile(dir + ".log")
		// One that still runs is not to be forgotten over another one.
		if errors.Is(err, errEnded) && bytes.Contains(said[min(before, int64(len(said))):], []byte(syscall.EADDRINUSE.Error())) {
			err = errors.Join(errTaken, err)
		}

		return fmt.Errorf("%w\n%s", err, said)
	}

	return nil
}

// awaitReady waits until an agent fires.
func (n *agent) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, agentPatience, errors.New("it is not ready in time"))
	defer cancel()

	for clock.Sleep(ctx, 10*time.Millisecond) {
		select {
		case <-n.ended:
			return errEnded
		default:
		}

		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.listen+"/readyz", nil)
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

// signalAndWait sends an agent a signal that ends it, and waits for that.
func (a *agents) signalAndWait(ctx context.Context, name string, s syscall.Signal) error {
	n := a.nodes[name]
	if n == nil {
		return fmt.Errorf("there is no %s", name)
	}

	delete(a.nodes, name)

	return n.endProcess(ctx, s)
}

func (n *agent) endProcess(ctx context.Context, s syscall.Signal) error {
	if err := n.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}

	select {
	case <-n.ended:
		return nil
	case <-ctx.Done():
	case <-time.After(agentPatience):
	}

	_ = n.cmd.Process.Kill()
	<-n.ended

	return fmt.Errorf("%s did not end on %s", n.cmd.Args[3], s)
}

// stopAll ends all agents.
func (a *agents) stopAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), agentPatience)
	defer cancel()

	var errs []error
	for name := range a.nodes {
		errs = append(errs, a.signalAndWait(ctx, name, syscall.SIGTERM))
	}

	http.DefaultClient.CloseIdleConnections()

	return errors.Join(errs...)
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}

	defer l.Close()

	return l.Addr().String(), nil
}
