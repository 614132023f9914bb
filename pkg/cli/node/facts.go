package node

import (
	"fmt"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/task"
)

// factHeads are the headings of the columns with a node's facts.
var factHeads = []string{"CPUS", "LOAD", "MEMORY", "MEMORY FREE", "DISK", "DISK FREE"}

// factCells returns the cells of these columns.
func factCells(f *factory.Factory, facts *task.Facts) []string {
	cells := make([]string, len(factHeads))
	for i, name := range []string{task.FactCPUs, task.FactLoad1, task.FactMemory, task.FactMemoryFree, task.FactDisk, task.FactDiskFree} {
		if cells[i] = view.FactText(facts, name); cells[i] == "" {
			cells[i] = f.NoValue()
		}
	}

	return cells
}

// describeFacts adds the facts of a node to its details.
func describeFacts(f *factory.Factory, d *output.Details, facts *task.Facts) {
	d.Field("CPUs", "%s", view.FactText(facts, task.FactCPUs))

	if one := view.FactText(facts, task.FactLoad1); one != "" {
		d.Field("Load", "%s, %s, %s", one, view.FactText(facts, task.FactLoad5), view.FactText(facts, task.FactLoad15))
	}

	free := func(name, of string) string {
		if view.FactText(facts, of) == "" {
			return ""
		}
		return fmt.Sprintf("%s free of %s", view.FactText(facts, name), view.FactText(facts, of))
	}

	d.Field("Memory", "%s", free(task.FactMemoryFree, task.FactMemory))
	d.Field("Disk", "%s", free(task.FactDiskFree, task.FactDisk))
}
