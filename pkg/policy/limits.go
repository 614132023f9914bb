package policy

import (
	"cmp"

	"github.com/carillonhq/carillon/pkg/task"
)

// Bind returns an attempt's process and timeout with the limits and settings of the policy. Limits that the task does not
// set are filled in, and higher ones are refused. If the policy sets anything for the process,
// the node has to enforce all limits, even if the task only wants a report. given is not changed. An error is a
// *Refusal.
func (p *Policy) Bind(given *task.Process, timeout task.Duration) (*task.Process, task.Duration, error) {
	if p.Limits == (Limits{}) && p.Require == (Require{}) {
		return given, timeout, nil
	}

	bound := *given // the caller's process stays unchanged
	l, most := &bound.Limits, p.Limits
	for _, err := range []error{
		atMost("timeout", most.Timeout, &timeout),
		atMost("open_files", most.OpenFiles, &l.OpenFiles),
		atMost("processes", most.Processes, &l.Processes),
		atMost("stack", most.Stack, &l.Stack),
		atMost("address_space", most.AddressSpace, &l.AddressSpace),
		atMost("cpu_time", most.CPUTime, &l.CPUTime),
		atMost("memory", most.Memory, &l.Memory),
		atMost("cpu", most.CPU, &l.CPU),
		atMost("pids", most.PIDs, &l.PIDs),
		atMostSet("file_size", most.FileSize, &l.FileSize),
		atMostSet("core", most.Core, &l.Core),
		atMostSet("swap", most.Swap, &l.Swap),
	} {
		if err != nil {
			return nil, 0, err
		}
	}

	bound.NoNewPrivs = bound.NoNewPrivs || p.Require.NoNewPrivs
	bound.PrivateTmp = bound.PrivateTmp || p.Require.PrivateTmp
	if tmp := task.PrivateDir(bound.Dir); p.Require.PrivateTmp && tmp != "" && tmp != bound.Dir {
		return nil, 0, newRefusal("require.private_tmp", "the directory %s does not exist: %s is empty when the process starts", task.Quote(bound.Dir), tmp)
	}

	if p.Limits.Limits != (task.Limits{}) || p.Require != (Require{}) {
		bound.Enforce = task.EnforceRequire
	}

	return &bound, timeout, nil
}

// atMost applies a maximum to a limit for which 0 means no limit.
func atMost[T cmp.Ordered](name string, most T, v *T) error {
	var none T
	switch {
	case most == none:
	case *v == none:
		*v = most
	case *v > most:
		return newRefusal("limits."+name, "%v is more than %v", *v, most)
	}

	return nil
}

// atMostSet applies a maximum to a limit for which nil means no limit and 0 is a valid limit.
func atMostSet(name string, most *task.Size, v **task.Size) error {
	switch {
	case most == nil:
	case *v == nil:
		*v = most
	case **v > *most:
		return newRefusal("limits."+name, "%v is more than %v", **v, *most)
	}

	return nil
}
