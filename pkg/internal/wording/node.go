package wording

import (
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// NodeState describes the state of a node: "ready, blocked: load1".
func NodeState(n task.Node) string {
	words := n.State
	if n.Ineligible != "" {
		words += ", " + n.Ineligible
	}

	return OneLine(words + blockedText(n) + IgnoredText(n))
}

// blockedText names the limits that a node exceeds.
func blockedText(n task.Node) string {
	if len(n.Blocked) == 0 {
		return ""
	}
	return ", blocked: " + strings.Join(n.Blocked, " ")
}

// IgnoredText names the labels that a node announces although its limit does not allow them.
func IgnoredText(n task.Node) string {
	if len(n.IgnoredLabels) == 0 {
		return ""
	}
	return ", ignored: " + Labels(n.IgnoredLabels)
}

// IneligibleText explains why a node owns no shards, from the reason in its record. It returns "" without a reason.
func IneligibleText(reason string) string {
	switch reason {
	case "":
		return ""
	case task.IneligibleClock:
		return "owns no shards, because its clock jumped or differs from the clocks of other nodes"
	case task.IneligibleStalled:
		return "owns no shards for now, because it did not decide ticks that were due"
	case task.IneligibleRestored:
		return "owns no shards, because etcd was restored from an older snapshot"
	}

	return "owns no shards: " + reason
}

// FactText formats a fact for people. It returns "" if the fact is unknown.
func FactText(f *task.Facts, name string) string {
	v, known := f.Fact(name)

	switch name {
	case task.FactMemory, task.FactMemoryFree, task.FactDisk, task.FactDiskFree:
		if known {
			return Bytes(int64(v))
		}
	case task.FactCPUs:
		if known {
			return fmt.Sprint(v)
		}
	default:
		if known {
			return fmt.Sprintf("%.2f", v)
		}
	}

	return ""
}
