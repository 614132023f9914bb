package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Open detects what the host supports, and creates the directories for groups. If the host
// has no usable control groups, it returns Groups whose Any is false and whose
// Why returns the reason. It returns an error only if the setting requires control groups, or if the record of
// groups cannot be read or written.
func Open(cfg Config) (*Groups, error) {
	g := &Groups{log: cfg.Logger, record: cfg.Record, v1: map[string]string{}, quarantined: map[*Group]bool{}, mkdir: cfg.mkdir}
	if g.mkdir == nil {
		g.mkdir = func(dir string) error { return os.Mkdir(dir, 0o755) }
	}

	if g.log == nil {
		g.log = zap.NewNop()
	}

	g.log = g.log.Named("cgroup")
	var err error
	if g.former, err = readRecord(cfg.Record); err != nil {
		return nil, err
	}

	if cfg.Setting == Off {
		g.unenforceable = errors.New("control groups are switched off (cgroup: off)")
		return g, nil
	}

	if cfg.proc == "" {
		cfg.proc = "/proc/self"
	}

	if err := g.openHost(cfg); err != nil {
		// Remove what was created before the error.
		removed := g.Close()

		if cfg.Setting != Auto {
			return nil, fmt.Errorf("control groups: %w", errors.Join(err, removed))
		}

		g.root, g.base, g.v2, g.v1, g.unenforceable = "", "", nil, map[string]string{}, err
		return g, removed
	}

	return g, nil
}

// openHost prepares the hierarchies. After an error, no groups can be used. If only limits cannot be enforced, it
// returns nil and sets g.unenforceable.
func (g *Groups) openHost(cfg Config) error {
	h, err := findHost(cfg.proc, cfg.Setting)
	if err != nil {
		return err
	}

	name := rootPrefix + cfg.Node + "-" + cfg.Instance
	dirs := map[string]string{}
	for c, dir := range h.v1 {
		dirs[c] = filepath.Join(dir, name)
	}

	var problem error
	if h.v2 != "" {
		var base string
		base, g.v2, err = h.prepareParent()
		problem = errors.Join(problem, err)

		if len(g.v2) > 0 {
			g.base = base
		}

		g.root = filepath.Join(base, name)
	} else if dirs["freezer"] != "" {
		g.root, g.freezer = dirs["freezer"], true
	} else {
		return errors.New("the host has neither cgroup v2 nor a freezer of v1")
	}

	for _, c := range []string{"memory", "cpu", "pids"} {
		if dirs[c] != "" && !slices.Contains(g.v2, c) {
			g.v1[c] = dirs[c]
		}
	}

	// Write the record before the groups exist, so that none is left without a record after a crash.
	if err := g.writeRecord(append(slices.Clone(g.former), g.Roots()...)); err != nil {
		return err
	}

	for c, dir := range g.v1 {
		if err := g.makeDirs(dir); err != nil {
			problem = errors.Join(problem, err)
			delete(g.v1, c)
		}
	}

	if err := g.makeDirs(g.root, filepath.Join(g.root, plainDir), filepath.Join(g.root, limitedDir)); err != nil {
		return err
	}

	for _, dir := range []string{g.root, filepath.Join(g.root, limitedDir)} {
		if err := enableControllers(dir, g.v2); err != nil {
			g.v2, problem = nil, errors.Join(problem, err)
			break
		}
	}

	g.unenforceable = problem

	if cfg.mkdir != nil {
		return nil
	}

	return g.tryClone()
}

// makeDirs creates directories. Directories that exist are not an error, because two controllers may share one.
func (g *Groups) makeDirs(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return err
		}
		if err := g.mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}

	return nil
}

// tryClone checks that processes can be started in a group, by an attempt to start a program that does not exist. It
// returns an error if the kernel, a seccomp filter, or the permissions of the groups above prevent it.
func (g *Groups) tryClone() error {
	if g.freezer {
		return nil
	}

	x, err := g.Acquire(Limits{})
	if err != nil {
		return err
	}

	defer g.Release(x)

	const none = "/proc/self/none"

	_, err = syscall.ForkExec(none, []string{none}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: x.FD()}})
	if errors.Is(err, unix.ENOENT) { // from execve, so all steps before it have succeeded
		return nil
	}

	return fmt.Errorf("start a process in a control group: %w", err)
}

// removalTimeout is the time limit for the processes of groups to end after SIGKILL.
const removalTimeout = 10 * time.Second

// Remove kills all processes in groups and in the groups below them, and removes
// the groups. roots is the result of Groups.Roots. It returns nil when nothing is left, and an error after limit. It
// also reverts the changes to the group that systemd has delegated to the daemon; see handBack.
func Remove(roots []string, limit time.Duration) (err error) {
	deadline := time.Now().Add(limit)

	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err = nil
		for _, root := range roots {
			if !isOurs(root) {
				return fmt.Errorf("%s is not a control group for the attempts of a daemon", root)
			}
			err = errors.Join(err, removeTree(root))
		}

		if err == nil || time.Now().After(deadline) {
			break
		}

		time.Sleep(pause)
	}

	if err != nil {
		return fmt.Errorf("remove control groups: %w", err)
	}

	for _, root := range roots {
		handBack(filepath.Dir(root))
	}

	return nil
}

// isOurs reports whether a directory has a name that this package gives. It prevents a damaged record from removing
// other groups.
func isOurs(root string) bool {
	return filepath.IsAbs(root) && strings.HasPrefix(filepath.Base(root), rootPrefix)
}

// removeTree kills all processes in a group and in those below it, and removes the groups whose processes have
// ended. An error means that some are left; the caller tries again.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil // not an error if it was removed meanwhile
	})

	if err != nil {
		return err
	}

	slices.Reverse(dirs) // children before their parents
	var errs []error
	for _, dir := range dirs {
		if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			continue
		}

		if !fileExists(dir, "cgroup.kill") || writeFile(dir, "cgroup.kill", "1") != nil {
			_ = killEach(dir)
		}

		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}

	return errors.Join(errs...)
}

// handBack disables the controllers below a v2 group, so that it may contain processes again. A service manager starts
// the next daemon there. If groups below it still use controllers, the
// kernel refuses, which is correct.
func handBack(dir string) {
	if !fileExists(dir, daemonLeaf) {
		return
	}

	on, err := readFile(dir, "cgroup.subtree_control")
	if err == nil && on != "" {
		_ = writeFile(dir, "cgroup.subtree_control", "-"+strings.Join(strings.Fields(on), " -"))
	}
}

// ClearFormer kills and removes what former daemons with the same record have left. If it returns nil,
// no process is left that they had started in a group, and further calls do nothing.
func (g *Groups) ClearFormer() error {
	if g == nil || len(g.former) == 0 {
		return nil
	}
	if err := Remove(g.former, removalTimeout); err != nil {
		return err
	}

	g.former = nil
	return g.writeRecord(g.Roots())
}

// readRecord returns the roots in a record. It ignores lines that are not the names of groups of this package.
func readRecord(path string) (roots []string, err error) {
	if path == "" {
		return nil, nil
	}

	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remains of earlier daemons: %w", err)
	}

	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSuffix(line, "\n"); isOurs(line) && !slices.Contains(roots, line) {
			roots = append(roots, line)
		}
	}

	return roots, nil
}

// writeRecord replaces the record. It does not sync it to disk, because groups do not survive a crash of the
// host either.
func (g *Groups) writeRecord(roots []string) error {
	if g.record == "" {
		return nil
	}

	text := strings.Join(roots, "\n")
	if text != "" {
		text += "\n"
	}

	next := g.record + ".new"
	err := os.WriteFile(next, []byte(text), 0o600)
	if err == nil {
		err = os.Rename(next, g.record)
	}

	if err != nil {
		return fmt.Errorf("note the control groups: %w", err)
	}

	return nil
}
