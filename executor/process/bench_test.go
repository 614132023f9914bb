package process

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

func BenchmarkProcess_True(b *testing.B) {
	for _, parallel := range []int{1, 4, 16} {
		b.Run(fmt.Sprint(parallel), func(b *testing.B) {
			l := newLauncher(b, spool.Config{})
			b.SetParallelism(parallel)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if r := l.attempt(b, command("/bin/true")); r.State != task.Succeeded {
						b.Error(r.Message)
					}
				}
			})

			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "spawns/s")
		})
	}
}

// What masking costs an attempt that has a secret and prints a line.
func BenchmarkProcess_Secret(b *testing.B) {
	for name, masks := range map[string]bool{"masked": true, "unmasked": false} {
		b.Run(name, func(b *testing.B) {
			l := newLauncher(b, spool.Config{}).withSecrets(b, map[string]map[string]string{"db": {"password": secretValue}})
			b.SetParallelism(4)
			before := executortest.CPU(b, unix.RUSAGE_SELF)

			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r := l.runWhole(b, func(a *task.Assigned) {
						a.Action.Process.Command = []string{"/bin/echo", "a line of output"}
						a.Action.Process.EnvFrom = []task.EnvFrom{{Secret: "db", Keys: map[string]string{"password": "pass"}}}
						a.Output.Mask = &masks
					})
					if r.State != task.Succeeded {
						b.Error(r.Message)
					}
				}
			})

			used := executortest.CPU(b, unix.RUSAGE_SELF) - before
			b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-µs/op")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "spawns/s")
		})
	}
}
