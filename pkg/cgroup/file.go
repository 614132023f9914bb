package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// readFile returns the contents of a file without surrounding white space.
func readFile(dir, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(b)), err
}

// writeFile writes to a file that exists already. The kernel creates the files of a group.
func writeFile(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}

	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}

	return err
}

// fileExists reports whether a file exists. With an empty name, it reports whether the directory exists.
func fileExists(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// readNumber returns the number in a file, or 0 if it cannot be read.
func readNumber(dir, name string) int64 {
	s, err := readFile(dir, name)
	if err != nil {
		return 0
	}

	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// lineNumber returns the number in the line "name number" of a text, or 0 if there is no such line.
func lineNumber(text, name string) int64 {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == name {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}

	return 0
}

// putProcess moves a process into a group.
func putProcess(dir string, pid int) error { return writeFile(dir, "cgroup.procs", strconv.Itoa(pid)) }

// pidsIn returns the processes in a group, without those in groups below it.
func pidsIn(dir string) ([]int, error) {
	s, err := readFile(dir, "cgroup.procs")
	if err != nil {
		return nil, err
	}

	var pids []int
	for line := range strings.SplitSeq(s, "\n") {
		if pid, err := strconv.Atoi(line); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}

	return pids, nil
}
