package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"
)

// The test binary is also the program that starts the container, and the program of its tasks.
const role = "TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "container":
		fail(enterContainer(os.Args[1], os.Args[2:]))
	case "task":
		runTask(os.Args[1])
	default:
		os.Exit(m.Run())
	}
}

// enterContainer is the first process of new namespaces. It makes the root file system of the image read-only, with a volume for data and
// one for temporary files, and becomes the program, as a container runtime does.
func enterContainer(root string, command []string) error {
	mount := func(source, target, kind string, flags uintptr, options string) error {
		if err := unix.Mount(source, filepath.Join(root, target), kind, flags, options); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
		return nil
	}

	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		mount(root, "", "", unix.MS_BIND, ""),
		mount("", "", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""),
		mount(root+".data", "var/lib/carillon", "", unix.MS_BIND, ""),
		mount("tmp", "tmp", "tmpfs", 0, "mode=1777"),
		mount("proc", "proc", "proc", 0, ""),
		mount("/dev", "dev", "", unix.MS_BIND, ""),
	)
	if err == nil {
		err = errors.Join(unix.Chroot(root), unix.Chdir("/"))
	}
	if err == nil {
		err = errors.Join(unix.Setgroups(nil), unix.Setresgid(user, user, user), unix.Setresuid(user, user, user))
	}
	if err != nil {
		return err
	}

	return unix.Exec(command[0], command, os.Environ())
}

// runTask does what a task does.
func runTask(what string) {
	sleeper := exec.Command("/task", "sleep")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	switch what {
	case "hello":
		fmt.Println("hello from", os.Getpid())
	case "sleep":
		time.Sleep(time.Hour)
	case "fork": // and wait with the child until the timeout
		_ = sleeper.Start()
		fmt.Println("forked")
		time.Sleep(time.Hour)
	case "drain": // ends by itself, when the node is stopping
		time.Sleep(2 * time.Second)
		fmt.Println("drained")
	}
}

// container is an agent that runs as the first process of namespaces.
type container struct {
	*testing.T
	root, server string
	cmd          *exec.Cmd
	log          bytes.Buffer
}

// startContainer unpacks the image for this host, and starts its command as its configuration says.
func startContainer(t *testing.T) *container {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can create namespaces")
	}

	config, root := unpackImage(t)
	c := &container{T: t, root: root}

	// Where the task's program and mounts go.
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"proc", "dev"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	if err = errors.Join(err, os.WriteFile(filepath.Join(root, "task"), self, 0o755), os.Mkdir(root+".data", 0o700), os.Chown(root+".data", user, user)); err != nil {
		t.Fatal(err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	c.server = "http://" + address
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	c.cmd = exec.Command("/proc/self/exe", append([]string{root}, append(config.Entrypoint, config.Cmd...)...)...)
	c.cmd.Env = append(slices.Clone(config.Env), role+"=container", "CARILLON_EMBEDDED=true", "CARILLON_LISTEN="+address, "CARILLON_DRAIN_TIMEOUT=20s")
	c.cmd.Stdout, c.cmd.Stderr = &c.log, &c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL}
	switch err := c.cmd.Start(); {
	case errors.Is(err, syscall.EPERM):
		t.Skip("this host does not permit namespaces")
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		if t.Failed() {
			t.Logf("the log of the agent:\n%s", c.log.String())
		}
	})

	return c
}

// unpackImage returns the configuration of the image for this host, and a directory with its files.
func unpackImage(t *testing.T) (config v1.Config, root string) {
	t.Helper()
	dir := t.TempDir()
	unpack(t, open(t, "carillon-*image.tar"), dir)

	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil || len(list.Manifests) != 1 {
		t.Fatal(list, err)
	}
	if index, err = index.ImageIndex(list.Manifests[0].Digest); err != nil {
		t.Fatal(err)
	}
	if list, err = index.IndexManifest(); err != nil || len(list.Manifests) != 2 {
		t.Fatal(list, err)
	}

	at := slices.IndexFunc(list.Manifests, func(m v1.Descriptor) bool { return m.Platform.Architecture == runtime.GOARCH })
	image, err := index.Image(list.Manifests[at].Digest)
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}

	root = filepath.Join(t.TempDir(), "root")
	if err := errors.Join(os.Mkdir(root, 0o755), os.Chmod(filepath.Dir(root), 0o755)); err != nil {
		t.Fatal(err)
	}
	files := mutate.Extract(image)
	defer files.Close()
	if size := unpack(t, files, root); size > 65_000_000 {
		t.Errorf("the image has %d bytes", size)
	}

	return file.Config, root
}

// unpack unpacks a tar archive, and returns the size of its files.
func unpack(t *testing.T, r io.Reader, dir string) (size int64) {
	t.Helper()
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return size
		}
		if err != nil {
			t.Fatal(err)
		}

		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var content []byte
			content, err = io.ReadAll(files)
			size += int64(len(content))
			err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644))
		}
		if err = errors.Join(err, os.Chown(path, h.Uid, h.Gid), os.Chmod(path, h.FileInfo().Mode())); err != nil {
			t.Fatal(err)
		}
	}
}

// try runs a command of the client against the agent.
func (c *container) try(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.root, "usr/bin/carillon"), args...)
	cmd.Env = []string{"CARILLON_SERVER=" + c.server, "CARILLON_TOKEN_FILE=" + c.root + ".data/token", "HOME=/nonexistent"}
	out, err := cmd.CombinedOutput()

	return string(out), err
}

// carillon is try for a command that must succeed.
func (c *container) carillon(args ...string) string {
	c.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.Fatalf("carillon %s: %v\n%s", strings.Join(args, " "), err, out)
	}

	return out
}

// until repeats a check until it is true.
func (c *container) until(what string, check func() bool) {
	c.Helper()
	for end := time.Now().Add(time.Minute); !check(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatal("never ", what)
		}
	}
}

// processes returns the states and the command lines of the processes in the container, except for the first one.
func (c *container) processes() (list []string) {
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.cmd.Process.Pid))
	if err != nil {
		c.Fatal(err)
	}

	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, dir := range dirs {
		if own, err := os.Readlink(dir + "/ns/pid"); err != nil || own != space || dir == "/proc/"+strconv.Itoa(c.cmd.Process.Pid) {
			continue
		}
		stat, err := os.ReadFile(dir + "/stat")
		line, err2 := os.ReadFile(dir + "/cmdline")
		if errors.Join(err, err2) == nil {
			_, state, _ := strings.Cut(string(stat), ") ")
			list = append(list, state[:1]+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}

	return list
}

// TestImage_AgentIsTheFirstProcess runs the agent of the image as a container does: as process 1, as a user other than root, with a
// read-only root file system, and without control groups.
func TestImage_AgentIsTheFirstProcess(t *testing.T) {
	c := startContainer(t)
	c.until("ready", func() bool { _, err := c.try("cluster", "status", "--exit-code"); return err == nil })
	isGuardian := func(p string) bool { return strings.Contains(p, "carillon guardian") }

	// A command in the container, such as one of docker exec, needs no settings.
	inside := exec.Command("nsenter", "--target", strconv.Itoa(c.cmd.Process.Pid), "--mount", "--pid", "--root", "--setuid", strconv.Itoa(user), "--setgid", strconv.Itoa(user), "--",
		"/usr/bin/carillon", "node", "list", "--server", c.server)
	inside.Env = []string{"HOME=/"}
	if out, err := inside.CombinedOutput(); err != nil || !strings.Contains(string(out), "ready") {
		t.Errorf("in the container: %v\n%s", err, out)
	}

	// A task runs and its output is kept.
	action := func(what string) []string { return []string{"--env", role + "=task", "--", "/task", what} }
	c.carillon(append([]string{"task", "create", "hello", "--schedule", "@manual"}, action("hello")...)...)
	c.carillon("task", "trigger", "hello", "--wait")
	if out := c.carillon("logs", "hello"); !strings.Contains(out, "hello from ") {
		t.Errorf("hello printed %q", out)
	}

	// A timeout also ends the child that has left the session of its parent. Process 1 adopts and reaps it.
	c.carillon(append([]string{"task", "create", "fork", "--schedule", "@manual", "--timeout", "2s"}, action("fork")...)...)
	if out, err := c.try("task", "trigger", "fork", "--wait"); err == nil {
		t.Errorf("fork succeeded: %s", out)
	}
	var run struct{ State string }
	if err := json.Unmarshal([]byte(c.carillon("run", "get", "fork", "-o", "json")), &run); err != nil || run.State != "timed_out" {
		t.Errorf("fork: %v, %v", run, err)
	}
	c.until("without processes of tasks and without zombies", func() bool {
		return !slices.ContainsFunc(c.processes(), func(p string) bool { return !isGuardian(p) })
	})
	if !slices.ContainsFunc(c.processes(), isGuardian) {
		t.Errorf("there is no guardian: %q", c.processes())
	}

	// At SIGTERM, a run that ends within the drain timeout ends by itself.
	c.carillon(append([]string{"task", "create", "drain", "--schedule", "@manual"}, action("drain")...)...)
	c.carillon("task", "trigger", "drain")
	c.until("running", func() bool {
		return slices.ContainsFunc(c.processes(), func(p string) bool { return strings.Contains(p, "/task drain") })
	})
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}

	for _, want := range []string{"attempts have no control groups", `"stopped"`} {
		if !strings.Contains(c.log.String(), want) {
			t.Errorf("the log does not contain %s", want)
		}
	}
	outputs, err := exec.Command("grep", "-rl", "--exclude-dir=etcd", "drained", c.root+".data").Output()
	if err != nil || len(outputs) == 0 {
		t.Errorf("the run was not drained: %v", err)
	}
}
