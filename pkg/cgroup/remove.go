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

// removalTimeout is how long the processes of groups may take to end after SIGKILL.
const removalTimeout = 10 * time.Second

// Remove kills all that is in groups, those below them included, and removes
// them, and returns when nothing is left, or, with an error, after limit. Of what
// systemd gave the daemon, it gives back what the daemon had changed. roots are
// what Groups.Roots said.
func Remove(roots []string, limit time.Duration) (err error) {
	deadline := time.Now().Add(limit)

	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err = nil
		for _, root := range roots {
			if !isOurs(root) {
				return fmt.Errorf("%s is not the control group of a daemon's attempts", root)
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

// isOurs keeps a damaged record from removing what others made.
func isOurs(root string) bool {
	return filepath.IsAbs(root) && strings.HasPrefix(filepath.Base(root), "carillon-")
}

// removeTree kills what is in a group and below, and removes it if that has ended.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil // what is gone meanwhile is gone
	})

	if err != nil {
		return err
	}

	slices.Reverse(dirs) // what is below comes first
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

// handBack lets processes be in a v2 group again: a service manager that starts
// the next daemon puts it there. Where other groups still have controllers, the
// kernel refuses.
func handBack(dir string) {
	if !fileExists(dir, daemonLeaf) {
		return
	}

	on, err := readFile(dir, "cgroup.subtree_control")
	if err == nil && on != "" {
		_ = writeFile(dir, "cgroup.subtree_control", "-"+strings.Join(strings.Fields(on), " -"))
	}
}

// ClearFormer removes what former daemons left that had the same record. After nil
// no process is left that they had started in a group, and it does nothing more.
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

func readRecord(path string) (roots []string, err error) {
	if path == "" {
		return nil, nil
	}

	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("what former daemons left: %w", err)
	}

	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSuffix(line, "\n"); isOurs(line) && !slices.Contains(roots, line) {
			roots = append(roots, line)
		}
	}

	return roots, nil
}

// writeRecord replaces the record. What it tells of need not outlive the host's
// power: no group does.
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
