package kvtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// programVariable is the environment variable with the path of the program that Launch starts. scripts/test.sh sets it.
// Without it, the program is built. versionVariable identifies the version of the program: the go command uses no cached
// result of a test that has read another value.
const (
	programVariable = "CARILLON_TEST_ETCD"
	versionVariable = "CARILLON_TEST_ETCD_ID"
)

// programPackage is the package of that program.
const programPackage = "github.com/carillonhq/carillon/pkg/internal/test/etcd"

// exitTimeout ends a server that does not stop. A stop usually takes a few milliseconds.
const exitTimeout = time.Minute

// Process is an etcd that runs as a process.
type Process struct {
	cmd      *exec.Cmd
	stdin    io.Closer
	endpoint string
	closing  sync.Once
	closed   error
}

// Launch starts an etcd for callers without a testing.TB, such as a TestMain. dir is the data directory, and quota the
// maximum size of the data in bytes, where 0 means 8 GiB. The caller must close the process. It also stops when this
// process ends, for whatever reason.
func Launch(dir string, quota int64) (*Process, error) {
	program, err := programPath()
	if err != nil {
		return nil, err
	}

	p := &Process{cmd: exec.Command(program, "-dir", dir, "-quota", fmt.Sprint(quota))}
	p.cmd.Stderr = os.Stderr

	// The process ends when its input is closed. This process has the only descriptor of the other end of that pipe.
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}

	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}

	if err := p.cmd.Start(); err != nil {
		return nil, err
	}

	// The process limits the time of its start itself.
	line, err := bufio.NewReader(stdout).ReadString('\n')
	endpoint, ready := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if !ready {
		return nil, fmt.Errorf("etcd did not start, its output is %q: %w", line, errors.Join(err, p.Close()))
	}

	p.endpoint = endpoint

	return p, nil
}

// Endpoint returns the address for clients. It depends only on the data directory.
func (p *Process) Endpoint() string { return p.endpoint }

// Close stops the server and waits until it has stopped. It may be called more than once.
func (p *Process) Close() error {
	p.closing.Do(func() {
		kill := time.AfterFunc(exitTimeout, func() { _ = p.cmd.Process.Kill() })
		defer kill.Stop()

		_ = p.stdin.Close()
		p.closed = p.cmd.Wait()
	})

	return p.closed
}

// Kill ends the server as a crash does, and waits until it has ended.
func (p *Process) Kill() {
	p.closing.Do(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // the error says that it was killed
		_ = p.stdin.Close()
	})
}

// programPath returns the path of the program, and builds it at most once in this process.
var programPath = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(programVariable); path != "" {
		_ = os.Getenv(versionVariable)
		return path, nil
	}

	path, err := buildProgram("test-etcd", programPackage)
	if err != nil {
		return "", fmt.Errorf("build etcd for tests, or set %s to a program made of %s: %w", programVariable, programPackage, err)
	}

	return path, nil
})

// EtcdPath returns the path of an etcd with all its flags, as operators run it. It is of the version in go.mod. EtcdPath builds
// it if it is not up to date.
func EtcdPath() (string, error) {
	path, err := buildProgram("etcd", "go.etcd.io/etcd/server/v3")
	if err != nil {
		return "", fmt.Errorf("build etcd: %w", err)
	}

	return path, nil
}

// buildProgram builds a program in the directory build of this module. The go command does nothing if the program is
// up to date. A file lock lets the tests of several packages build at the same time.
func buildProgram(name, pkg string) (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}

	root := filepath.Dir(strings.TrimSpace(string(mod)))
	if root == "." {
		return "", errors.New("the working directory is not in a checkout of Carillon")
	}

	dir := filepath.Join(root, "build")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}

	path := filepath.Join(dir, name)
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}

	defer lock.Close()

	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}

	// The programs have no race detector: it would make etcd several times slower, and tests of package embedded use it.
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")

	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}

	return path, nil
}
