package view

import (
	"fmt"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/task"
)

// FactText formats a fact for people. It returns "" if the fact is unknown.
func FactText(f *task.Facts, name string) string {
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
