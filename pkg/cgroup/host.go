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

// The values of the setting that are not paths.
const (
	Auto = "auto" // below the daemon's own group, if possible
	Off  = "off"
)

// CheckSetting returns an error if a setting is neither auto, nor off, nor the path of a
// group in the form of /proc/self/cgroup.
func CheckSetting(s string) error {
	if s == Auto || s == Off {
		return nil
	}
	if !filepath.IsAbs(s) || filepath.Clean(s) != s || s == "/" {
		return fmt.Errorf("%q is neither auto, nor off, nor the path of a control group, such as /carillon", s)
	}
	if strings.HasPrefix(s, "/sys/fs/cgroup") {
		return fmt.Errorf("%q is a directory: use the path within the hierarchy of control groups, such as /carillon", s)
	}

	return nil
}

// host describes the control groups of a process.
type host struct {
	v2     string            // the directory of its v2 group; "": there is no v2 hierarchy
	v1     map[string]string // the directories of its v1 groups, by controller
	inner  bool              // its v2 group is the root of the hierarchy that it sees
	chosen bool              // the setting names the group; otherwise it is the process's own
}

// findHost reads the control groups of a process from its /proc/<pid> directory. A setting that is a path
// replaces the process's own group.
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

// ownGroups parses /proc/<pid>/cgroup. It returns the paths of the groups by controller, with "" for v2.
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

// mount is a mounted hierarchy.
type mount struct {
	root, point string   // the group at its root, and the directory where it is mounted
	controllers []string // "" is v2
}

// dirOf returns the directory of the group with a path.
func (m mount) dirOf(path string) string {
	if rest, ok := strings.CutPrefix(path, m.root); ok {
		path = rest
	}
	return filepath.Join(m.point, path)
}

// usedControllers lists the v1 controllers that limit attempts or find their processes.
var usedControllers = []string{"memory", "cpu", "pids", "freezer"}

// parseMount parses a line of mountinfo. It returns false if the line is not about a hierarchy that this package uses.
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

// unescapeMount decodes the escape sequences of mountinfo.
var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace

// isDelegated reports whether the process may create groups below a v2 group. The root group has no owner. For
// other groups, systemd sets an extended attribute.
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

	return h.chosen || h.inner && os.Getpid() == 1 // the first process of a container uses the container's group alone
}

// daemonLeaf is the name of the daemon's own group below its former one. It is needed if groups beside it have
// controllers, because v2 then allows no process in the group above.
const daemonLeaf = "daemon"

// prepareParent prepares the v2 group for groups with controllers below it. It returns its directory
// and the controllers. An error means that limits cannot be enforced; the directory is valid nevertheless.
func (h host) prepareParent() (dir string, controllers []string, err error) {
	dir = h.v2
	if filepath.Base(dir) == daemonLeaf && !h.chosen {
		// A former daemon of this unit has created the leaf, and the process is already in it.
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
	// The order matters: controllers can be enabled only while no process is in the group itself.
	if err := h.moveToLeaf(dir); err != nil {
		return h.v2, nil, err
	}
	if err := enableControllers(dir, controllers); err != nil {
		return h.v2, nil, err
	}

	return dir, controllers, nil
}

// moveToLeaf moves all processes in a group to the group daemonLeaf below it.
func (h host) moveToLeaf(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.type")); h.chosen || errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	leaf := filepath.Join(dir, daemonLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}

	for range 10 { // processes may fork while they are moved
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

	return fmt.Errorf("new processes keep appearing in %s", dir)
}

// enableControllers enables controllers for the groups below a v2 group.
func enableControllers(dir string, controllers []string) error {
	if len(controllers) == 0 {
		return nil
	}
	return writeFile(dir, "cgroup.subtree_control", "+"+strings.Join(controllers, " +"))
}
