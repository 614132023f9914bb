package process

import (
	"fmt"
	"testing"

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
