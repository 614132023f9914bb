package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

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
		return nil // a directory that was removed meanwhile is no error
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
