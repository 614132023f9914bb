package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The settings that are no path.
const (
	Auto = "auto" // below the daemon's own group, if that may be
	Off  = "off"
)

// CheckSetting says what is wrong with a setting: auto, off, or the path of a
// group, as /proc/self/cgroup shows paths.
func CheckSetting(s string) error {
	if s == Auto || s == Off {
		return nil
	}
	if !filepath.IsAbs(s) || filepath.Clean(s) != s || s == "/" {
		return fmt.Errorf("%q is neither auto, nor off, nor the path of a control group, such as /carillon", s)
	}
	if strings.HasPrefix(s, "/sys/fs/cgroup") {
		return fmt.Errorf("%q is a directory: a control group's path begins below that of its hierarchy, such as /carillon", s)
	}

	return nil
}

// host is where a process finds its control groups.
type host struct {
	v2     string            // the directory of its group; empty: there is no such hierarchy
	v1     map[string]string // the same by controller
	inner  bool              // the v2 group is the root of what the process sees
	chosen bool              // not its own group but one that somebody named
}

// findHost reads what a /proc/<pid> directory says. A setting that is a path
// takes the place of the process's own group.
func findHost(proc, setting string) (host, error) {
	h := host{v1: map[string]string{}}
	own, err := ownGroups(filepath.Join(proc, "cgroup"))
	if err != nil {
		return h, err
	}

	f, err := os.Open(filepath.Join(proc, "mountinfo"))
	if err != nil {
		return h, err
	}

	defer f.Close()

	lines := bufio.NewScanner(f)
	for lines.Scan() {
		m, ok := parseMount(lines.Text())
		if !ok {
			continue
		}

		h.chosen = setting != Auto
		for _, c := range m.controllers {
			path, ok := own[c]
			if h.chosen {
				path, ok = setting, true
			}

			if !ok {
				continue
			}

			dir := m.dirOf(path)

			switch {
			case c != "":
				h.v1[c] = dir
			case h.v2 == "":
				h.v2, h.inner = dir, path == "/"
			}
		}
	}

	return h, lines.Err()
}

// ownGroups are paths by controller; "" is v2.
func ownGroups(file string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}

	own := map[string]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}

		for c := range strings.SplitSeq(f[1], ",") {
			own[c] = f[2]
		}
	}

	return own, nil
}

type mount struct {
	root, point string
	controllers []string // "" is v2
}

func (m mount) dirOf(path string) string {
	if rest, ok := strings.CutPrefix(path, m.root); ok {
		path = rest
	}
	return filepath.Join(m.point, path)
}

// usedControllers are the controllers that limit attempts, or find them.
var usedControllers = []string{"memory", "cpu", "pids", "freezer"}

// parseMount reads a line of mountinfo; false: it is no hierarchy of use.
func parseMount(line string) (mount, bool) {
	before, after, ok := strings.Cut(line, " - ")
	f, g := strings.Fields(before), strings.Fields(after)
	if !ok || len(f) < 5 || len(g) < 3 {
		return mount{}, false
	}

	m := mount{root: unescapeMount(f[3]), point: unescapeMount(f[4])}

	switch g[0] {
	case "cgroup2":
		m.controllers = []string{""}
	case "cgroup":
		for o := range strings.SplitSeq(g[2], ",") {
			if slices.Contains(usedControllers, o) {
				m.controllers = append(m.controllers, o)
			}
		}
	}

	return m, len(m.controllers) > 0
}

var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace

// isDelegated reports whether a group of v2 is the process's to divide. In the root
// of all, everybody with the rights may; in others, systemd says so.
func (h host) isDelegated(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.type")); errors.Is(err, fs.ErrNotExist) {
		return true // the root of the host
	}

	for _, attr := range []string{"trusted.delegate", "user.delegate"} {
		var v [1]byte
		if n, err := unix.Getxattr(dir, attr, v[:]); err == nil && n == 1 && v[0] == '1' {
			return true
		}
	}

	return h.chosen || h.inner && os.Getpid() == 1 // a container, and nobody else's
}

// daemonLeaf is the group of the daemon itself where groups beside it have
// controllers: then no process may be in the group above.
const daemonLeaf = "daemon"

// prepareParent readies the v2 group for groups with controllers below it, and returns
// it, and which controllers those can have.
func (h host) prepareParent() (dir string, controllers []string, err error) {
	dir = h.v2
	if filepath.Base(dir) == daemonLeaf && !h.chosen {
		dir = filepath.Dir(dir)
	}

	if h.chosen {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return dir, nil, err
		}
	}

	offered, err := readFile(dir, "cgroup.controllers")
	if err != nil {
		return dir, nil, err
	}

	for _, c := range []string{"memory", "cpu", "pids"} {
		if slices.Contains(strings.Fields(offered), c) {
			controllers = append(controllers, c)
		}
	}

	if len(controllers) == 0 {
		return dir, nil, nil
	}
	if !h.isDelegated(dir) {
		return h.v2, nil, errors.New("the daemon's control group is not delegated to it (systemd: Delegate=yes; or set cgroup to a path)")
	}
	if err := h.moveToLeaf(dir); err != nil {
		return h.v2, nil, err
	}
	if err := enableControllers(dir, controllers); err != nil {
		return h.v2, nil, err
	}

	return dir, controllers, nil
}

// moveToLeaf moves what is in a group into a leaf of it.
func (h host) moveToLeaf(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.type")); h.chosen || errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	leaf := filepath.Join(dir, daemonLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}

	for range 10 { // what it starts meanwhile comes after it
		pids, err := pidsIn(dir)
		if err != nil || len(pids) == 0 {
			return err
		}

		for _, pid := range pids {
			if err := putProcess(leaf, pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("move process %d to %s: %w", pid, leaf, err)
			}
		}
	}

	return fmt.Errorf("processes keep coming into %s", dir)
}

func enableControllers(dir string, controllers []string) error {
	if len(controllers) == 0 {
		return nil
	}
	return writeFile(dir, "cgroup.subtree_control", "+"+strings.Join(controllers, " +"))
}
