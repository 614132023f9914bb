package record

import (
	"github.com/go-faster/jx"

	"github.com/carillonhq/carillon/pkg/task"
)

// writeUsage writes the resource usage of an attempt. Nearly every record of a process has it,
// so it is encoded without reflection.
func (r *writer) writeUsage(u task.Usage) {
	if u == (task.Usage{}) {
		return
	}

	r.writeName("usage")
	r.w.ObjStart()
	r.more = false
	r.writeInt64IfSet("cpu_ms", u.CPUMS)
	r.writeInt64IfSet("memory_peak", u.MemoryPeak)
	r.writeInt64IfSet("io_read", u.IORead)
	r.writeInt64IfSet("io_written", u.IOWritten)
	r.w.ObjEnd()
	r.more = true
}

// readUsage reads what writeUsage has written.
func (r *reader) readUsage(v *task.Usage) {
	r.err = r.d.ObjBytes(func(d *jx.Decoder, name []byte) (err error) {
		if d.Next() == jx.Null {
			return d.Null()
		}

		switch string(name) {
		case "cpu_ms":
			v.CPUMS, err = d.Int64()
		case "memory_peak":
			v.MemoryPeak, err = d.Int64()
		case "io_read":
			v.IORead, err = d.Int64()
		case "io_written":
			v.IOWritten, err = d.Int64()
		default:
			err = d.Skip()
		}

		return err
	})
}
