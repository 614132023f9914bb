package chaos_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// markName is a variable in the environment of every process of a run, including tasks. It identifies the run, so
// that all processes can be found, whatever they fork.
const markName = "CHAOS_RUN"

var forks = make(chan func())

// forkAll forks from one thread that exists as long as the program, because the kernel sends the parent-death
// signal when the thread that forked ends.
func forkAll() {
	runtime.LockOSThread()
	for f := range forks {
		f()
	}
}

// process is one process of the cluster. It ends with the test.
type process struct {
	cmd  *exec.Cmd
	log  *os.File
	gone chan struct{}
}

// launch starts a process. Its output is appended to the log.
func launch(log string, env []string, argv ...string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}

	p := &process{cmd: exec.Command(argv[0], argv[1:]...), log: f, gone: make(chan struct{})}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	done := make(chan struct{})
	forks <- func() { err = p.cmd.Start(); close(done) }
	<-done

	if err != nil {
		f.Close()
		return nil, fmt.Errorf("start %s: %w", filepath.Base(argv[0]), err)
	}

	go func() {
		_ = p.cmd.Wait() // the log contains how it ended, or the test ended it
		f.Close()
		close(p.gone)
	}()

	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() bool {
	if p == nil {
		return false
	}

	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

// signal sends a signal. A process that has ended is ignored.
func (p *process) signal(s syscall.Signal) error {
	if !p.running() {
		return nil
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}

	return nil
}

// end sends a signal that ends the process, and waits for its end.
func (p *process) end(s syscall.Signal, most time.Duration) error {
	if err := p.signal(s); err != nil {
		return err
	}
	if p == nil {
		return nil
	}

	select {
	case <-p.gone:
		return nil
	case <-time.After(most):
		return fmt.Errorf("process %d did not end within %s of %v", p.pid(), most, s)
	}
}

// found is a process of the run, as /proc shows it.
type found struct {
	pid, parent int
	command     string
	env         []string
}

func (f found) variable(name string) string {
	for _, e := range f.env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}

	return ""
}

// isTask reports whether a process belongs to an attempt and must end with it.
func (f found) isTask() bool { return f.variable("CARILLON_RUN_ID") != "" && f.variable(escaped) == "" }

// find returns all processes of a run that are alive.
func find(mark string) (all []found) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil || !bytes.Contains(env, []byte(markName+"="+mark+"\x00")) {
			continue
		}

		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}

		// "pid (command) state parent …": the command can contain any characters.
		words := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(words) < 2 || words[0] == "Z" {
			continue
		}

		f := found{env: strings.Split(string(env), "\x00")}
		f.pid, _ = strconv.Atoi(filepath.Base(dir))
		f.parent, _ = strconv.Atoi(words[1])
		if line, err := os.ReadFile(dir + "/cmdline"); err == nil {
			f.command = strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
		}

		all = append(all, f)
	}

	return all
}

// sweep kills all processes of a run, until none is left.
func sweep(mark string) {
	for range 500 {
		all := find(mark)
		if len(all) == 0 {
			return
		}

		for _, f := range all {
			_ = syscall.Kill(f.pid, syscall.SIGKILL)
		}

		time.Sleep(20 * time.Millisecond)
	}
}
