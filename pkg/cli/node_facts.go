package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/task"
)

// factHeads and factCells are the columns of a node's facts.
var factHeads = []string{"CPUS", "LOAD", "MEMORY", "MEMORY FREE", "DISK", "DISK FREE"}

func (a *app) factCells(f *task.Facts) []string {
	cells := make([]string, len(factHeads))
	for i, name := range []string{task.FactCPUs, task.FactLoad1, task.FactMemory, task.FactMemoryFree, task.FactDisk, task.FactDiskFree} {
		if cells[i] = factWords(f, name); cells[i] == "" {
			cells[i] = a.NoValue()
		}
	}
	return cells
}

// factWords is a fact as people read it; "" if it is not known.
func factWords(f *task.Facts, name string) string {
	v, known := f.Fact(name)
	switch name {
	case task.FactMemory, task.FactMemoryFree, task.FactDisk, task.FactDiskFree:
		if known {
			return output.Bytes(int64(v))
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

func (a *app) describeFacts(d *output.Details, f *task.Facts) {
	d.Field("CPUs", "%s", factWords(f, task.FactCPUs))
	if one := factWords(f, task.FactLoad1); one != "" {
		d.Field("Load", "%s, %s, %s", one, factWords(f, task.FactLoad5), factWords(f, task.FactLoad15))
	}
	free := func(name, of string) string {
		if factWords(f, of) == "" {
			return ""
		}
		return fmt.Sprintf("%s free of %s", factWords(f, name), factWords(f, of))
	}
	d.Field("Memory", "%s", free(task.FactMemoryFree, task.FactMemory))
	d.Field("Disk", "%s", free(task.FactDiskFree, task.FactDisk))
}

// placeWords are where a task's runs go.
func placeWords(t task.Target) string {
	words := cmp.Or(t.Selector, "any node")
	switch t.Strategy {
	case task.StrategyAuto, "":
	case task.StrategyHash:
		words += ", by the hash of " + cmp.Or(t.Key, "its name")
	case task.StrategyFirst:
		words += ", the first of " + strings.Join(t.Order, ", ")
	default:
		words += ", " + t.Strategy
	}
	return words
}
