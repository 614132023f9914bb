package importer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// setPriority converts the umask, and the priorities of the CPU and of I/O.
func (s *service) setPriority() (err error) {
	p := s.process
	p.Umask = s.value("UMask")

	if v := s.value("Nice"); v != "" {
		if p.Nice, err = strconv.Atoi(v); err != nil {
			return fmt.Errorf("setting Nice=%s: is not a number", v)
		}
	}

	class, level := s.value("IOSchedulingClass"), s.value("IOSchedulingPriority")
	if n, err := strconv.Atoi(class); err == nil && n >= 0 && n < 4 {
		class = []string{"none", "realtime", "best-effort", "idle"}[n]
	}

	switch class {
	case "idle":
		p.IONice = class
	case "none":
	case "":
		if level != "" {
			p.IONice = "best-effort/" + level
		}
	default:
		if p.IONice = class; level != "" {
			p.IONice += "/" + level
		}
	}

	return nil
}

// setPrivileges converts what confines the process.
func (s *service) setPrivileges() error {
	p := s.process
	p.NoNewPrivs = s.unit.boolValue("Service", "NoNewPrivileges")

	v := s.value("PrivateTmp")
	p.PrivateTmp = isTrue(v) || v == "disconnected"

	if s.unit.boolValue("Service", "DynamicUser") {
		p.NoNewPrivs, p.PrivateTmp = true, true
	}

	// Only root may filter system calls without it.
	for _, key := range impliesNoNewPrivileges {
		if v := strings.ToLower(s.value(key)); p.User != "root" && v != "" && !slices.Contains([]string{"0", "no", "n", "false", "f", "off"}, v) {
			p.NoNewPrivs = true
		}
	}

	return nil
}

// setControlGroup converts the limits of all processes together.
func (s *service) setControlGroup() error {
	l := &s.process.Limits

	key, v := s.unit.lastOf("Service", "MemoryMax", "MemoryLimit")
	if size, ok, err := s.readSize(key, v); err != nil {
		return err
	} else if ok {
		l.Memory = size
	}

	swap, ok, err := s.readSize("MemorySwapMax", s.value("MemorySwapMax"))
	switch {
	case err != nil:
		return err
	case ok && l.Memory == 0:
		s.addNote("MemorySwapMax=%s requires MemoryMax= to become limits.swap", s.value("MemorySwapMax"))
	case ok:
		l.Swap = &swap
	}

	if v := s.value("CPUQuota"); v != "" {
		percent, err := strconv.ParseFloat(strings.TrimSuffix(v, "%"), 64)
		if err != nil || !strings.HasSuffix(v, "%") || percent <= 0 {
			return fmt.Errorf("CPUQuota=%s: is not a percentage", v)
		}
		l.CPU = percent / 100
	}

	switch v := s.value("TasksMax"); {
	case v == "" || v == "infinity":
	case strings.HasSuffix(v, "%"):
		s.addNote("TasksMax=%s depends on the host: set limits.pids to a number", v)
	default:
		if l.PIDs, err = strconv.ParseInt(v, 10, 64); err != nil {
			return fmt.Errorf("TasksMax=%s: is not a number", v)
		}
	}

	return nil
}

// readSize parses a size. ok is false if it means no limit, or depends on the host.
func (s *service) readSize(key, text string) (size task.Size, ok bool, err error) {
	switch {
	case text == "" || text == "infinity":
		return 0, false, nil
	case strings.HasSuffix(text, "%"):
		s.addNote("%s=%s depends on the memory of the host: set the limit to a size", key, text)
		return 0, false, nil
	}

	if size, err = systemdSize(text); err != nil {
		return 0, false, fmt.Errorf("%s=%s: %w", key, text, err)
	}

	return size, true, nil
}

// systemdSize parses a size with a unit that is a power of 1024.
func systemdSize(text string) (task.Size, error) {
	number, unit := strings.TrimRight(text, "BKMGTPE"), 1.0
	for _, c := range strings.TrimSuffix(text[len(number):], "B") {
		unit *= math.Pow(1024, float64(strings.IndexRune("KMGTPE", c)+1))
	}

	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || n < 0 || n*unit > 1<<60 || len(text)-len(number) > 2 {
		return 0, errors.New("is not a size")
	}

	return task.Size(n * unit), nil
}

// setRlimits converts the limits of each process.
func (s *service) setRlimits() error {
	l := &s.process.Limits
	size := func(into *task.Size) func(string) error {
		return func(text string) (err error) {
			*into, err = systemdSize(text)
			return err
		}
	}
	optional := func(into **task.Size) func(string) error {
		return func(text string) error {
			n, err := systemdSize(text)
			*into = &n
			return err
		}
	}
	number := func(into *int64) func(string) error {
		return func(text string) error {
			n, err := systemdSize(text)
			*into = int64(n)
			return err
		}
	}

	for _, limit := range []struct {
		key string
		set func(text string) error
	}{
		{"LimitNOFILE", number(&l.OpenFiles)}, {"LimitNPROC", number(&l.Processes)},
		{"LimitFSIZE", optional(&l.FileSize)}, {"LimitCORE", optional(&l.Core)},
		{"LimitSTACK", size(&l.Stack)}, {"LimitAS", size(&l.AddressSpace)},
		{"LimitCPU", func(text string) error {
			d, err := parseTimespan(text)
			l.CPUTime = task.Duration(d.Truncate(time.Second))
			return err
		}},
	} {
		v := s.value(limit.key)
		soft, hard, both := strings.Cut(v, ":")

		switch {
		case v == "":
			continue
		case soft == "infinity":
			s.addNote("%s=%s: the task has the limit of the node's daemon", limit.key, v)
			continue
		case both && soft != hard:
			s.addNote("%s=%s: the task has one limit, %s, which its processes cannot raise", limit.key, v, soft)
		}

		if err := limit.set(soft); err != nil {
			return fmt.Errorf("%s=%s: %w", limit.key, v, err)
		}
	}

	return nil
}
