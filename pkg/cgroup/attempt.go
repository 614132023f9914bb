package cgroup

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The directories of groups below the root of a daemon.
const (
	plainDir   = "plain"   // attempts without limits
	limitedDir = "limited" // attempts with limits
)

// rootPrefix begins the name of each root.
const rootPrefix = "carillon-"

// AttemptGroup returns the path of the control group of a process of an attempt, whichever daemon of this host runs the attempt.
// It returns "" for other processes, and if the kernel has no control groups. Only a process with
// the rights of root can leave the group of its attempt.
//
// The number may belong to another process when AttemptGroup returns, unless the caller knows that it does not.
func AttemptGroup(pid int) (string, error) {
	groups, err := ownGroups(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}

	for _, path := range groups {
		if isAttemptGroup(path) {
			return path, nil
		}
	}

	return "", err
}

// isAttemptGroup reports whether a path, in the form of /proc/<pid>/cgroup, is the group of an attempt or below it.
func isAttemptGroup(path string) bool {
	names := strings.Split(path, "/")
	for i, name := range names[:len(names)-1] {
		if strings.HasPrefix(name, rootPrefix) && slices.Contains([]string{plainDir, limitedDir}, names[i+1]) {
			return true
		}
	}

	return false
}
