package task

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Limits are the resources that the processes of an attempt may use. 0 or an absent value means no limit. The
// first seven are the kernel's limits of each single process (setrlimit), soft and hard. The others apply to
// all processes of the attempt together, on nodes with control groups.
type Limits struct {
	OpenFiles    int64    `json:"open_files,omitempty" doc:"Files and sockets that a process may have open." absent:"the daemon's" min:"8" max:"1073741824"`
	FileSize     *Size    `json:"file_size,omitempty" doc:"The largest file that a process may write; 0 allows none." absent:"the daemon's" min:"0" max:"1024Ti"`
	Core         *Size    `json:"core,omitempty" doc:"The largest core dump; 0 disables core dumps." absent:"the daemon's" min:"0" max:"1024Ti"`
	Processes    int64    `json:"processes,omitempty" doc:"Processes and threads that its user may have on the node, including those of other tasks. It does not limit root; pids does." absent:"the daemon's" min:"1" max:"4194304"`
	Stack        Size     `json:"stack,omitzero" doc:"The stack of a process." absent:"the daemon's" min:"64Ki" max:"1024Ti"`
	AddressSpace Size     `json:"address_space,omitzero" doc:"The address space of a process." absent:"the daemon's" min:"1Mi" max:"1024Ti"`
	CPUTime      Duration `json:"cpu_time,omitzero" doc:"CPU time of a process, in whole seconds; SIGXCPU then, and SIGKILL 5s later." absent:"the daemon's" min:"1s" max:"8784h"`

	Memory Size    `json:"memory,omitzero" doc:"Memory of all processes of an attempt." absent:"none" min:"1Mi" max:"1024Ti"`
	Swap   *Size   `json:"swap,omitempty" doc:"Swap space for all processes of an attempt; 0 allows none. It requires memory." absent:"none" min:"0" max:"1024Ti"`
	CPU    float64 `json:"cpu,omitempty" doc:"Number of CPUs that all processes of an attempt may use together, for example 1.5." absent:"none" min:"0.01" max:"4096"`
	PIDs   int64   `json:"pids,omitempty" doc:"Processes and threads that an attempt may have." absent:"none" min:"1" max:"4194304"`
}

// CPUTimeGrace is the CPU time that a process gets between SIGXCPU at limits.cpu_time and SIGKILL.
const CPUTimeGrace = 5 * time.Second

// The values of Process.Enforce: what happens to an attempt if its node cannot enforce all settings.
const (
	EnforceRequire = "require" // the attempt fails before its program starts
	EnforceReport  = "report"  // the attempt runs, and its record lists what was not enforced
)

// Limits of the settings that confine a process.
const (
	MaxNice      = 19
	MaxOpenFiles = 1 << 30
)

// validateConfinement checks the settings that apply before the process executes its first instruction.
func (p *Process) validateConfinement(field string) error {
	checks := []func() error{
		func() error { return checkAccount(field+".group", "a group", p.Group) },
		func() error { return checkGroups(field+".groups", p.Groups) },
		func() error { _, err := ParseUmask(field+".umask", p.Umask); return err },
		func() error { _, err := ParseIONice(field+".ionice", p.IONice); return err },
		func() error { return p.checkPrivateDir(field + ".dir") },
		func() error { return p.Limits.validate(field + ".limits") },
	}

	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}

	return nil
}

// checkAccount checks the name of a user or group. what names the kind in the message.
func checkAccount(field, what, name string) error {
	if len(name) > 256 || strings.ContainsAny(name, "\x00:\n /") {
		return Invalid(CodeBadValue, field, "%s is not the name of %s", Quote(name), what)
	}
	return nil
}

// checkGroups checks supplementary groups.
func checkGroups(field string, groups []string) error {
	for i, g := range groups {
		at := fmt.Sprintf("%s[%d]", field, i)

		if g == "" {
			return Invalid(CodeRequired, at, "must not be empty")
		}
		if err := checkAccount(at, "a group", g); err != nil {
			return err
		}
	}

	return nil
}

// checkPrivateDir rejects a working directory below a private /tmp, because it would not exist.
func (p *Process) checkPrivateDir(field string) error {
	if tmp := PrivateDir(p.Dir); p.PrivateTmp && tmp != "" && tmp != p.Dir {
		return Invalid(CodeBadValue, field, "%s does not exist: with private_tmp, %s is empty when the process starts", Quote(p.Dir), tmp)
	}
	return nil
}

// PrivateDirs are the directories that are private with private_tmp.
var PrivateDirs = []string{"/tmp", "/var/tmp"}

// PrivateDir returns the entry of PrivateDirs that contains a path or equals it, or "".
func PrivateDir(path string) string {
	for _, d := range PrivateDirs {
		if path == d || strings.HasPrefix(path, d+"/") {
			return d
		}
	}

	return ""
}

// validate checks what the ranges of the limits do not say.
func (l Limits) validate(field string) error {
	if l.CPUTime%Duration(time.Second) != 0 {
		return Invalid(CodeBadDuration, field+".cpu_time", "%s is not a whole number of seconds, as the kernel requires", l.CPUTime)
	}
	if l.Swap != nil && l.Memory == 0 {
		return Invalid(CodeBadValue, field+".swap", "requires limits.memory")
	}

	return nil
}

var umaskForm = regexp.MustCompile(`^0?[0-7]{1,3}$`)

// ParseUmask parses a umask in octal. It returns -1 for "".
func ParseUmask(field, text string) (int, error) {
	if text == "" {
		return -1, nil
	}
	if !umaskForm.MatchString(text) {
		return 0, Invalid(CodeBadValue, field, "%s is not a umask in octal, such as \"027\"", Quote(text))
	}

	v, _ := strconv.ParseUint(text, 8, 32) // the pattern guarantees that it parses
	return int(v), nil
}

// IONice is the I/O priority of a process: Class as in ioprio_set, and Level from 0 (highest) to 7.
type IONice struct{ Class, Level int }

// The values of IONice.Class; 0 means the daemon's class.
const (
	IORealtime   = 1
	IOBestEffort = 2
	IOIdle       = 3
)

// ParseIONice parses "idle", "best-effort" or "realtime". The latter two may have a level from 0 to 7 after a
// slash; the default is 4. It returns the zero value for "".
func ParseIONice(field, text string) (IONice, error) {
	if text == "" {
		return IONice{}, nil
	}

	class, level, leveled := strings.Cut(text, "/")
	n, ok := map[string]IONice{"idle": {Class: IOIdle}, "best-effort": {IOBestEffort, 4}, "realtime": {IORealtime, 4}}[class]
	if leveled {
		ok = ok && n.Class != IOIdle && len(level) == 1 && level[0] >= '0' && level[0] <= '7'
		if ok {
			n.Level = int(level[0] - '0')
		}
	}

	if !ok {
		return IONice{}, Invalid(CodeBadValue, field, "%s is not idle, best-effort or realtime, with or without a level such as best-effort/7", Quote(text))
	}

	return n, nil
}

// AdminGroup is the OS group whose members administer the cluster through the unix socket of a node, without a token.
const AdminGroup = "carillon"

// rootGroups are the OS groups whose members can become root on a usual host, or can do what only root should: they
// read or write disks, memory or password hashes, may use sudo, or control a daemon that starts processes as root.
var rootGroups = map[string]bool{
	"root": true, AdminGroup: true,
	"disk": true, "kmem": true, "shadow": true, "staff": true,
	"sudo": true, "wheel": true, "admin": true,
	"docker": true, "lxd": true, "incus-admin": true, "libvirt": true,
}

// IsRootGroup reports whether the members of an OS group with this name are root in effect. The list of names is not
// complete: a host can give any group such rights. Case does not matter, because some user databases ignore it.
func IsRootGroup(name string) bool { return rootGroups[strings.ToLower(name)] }
