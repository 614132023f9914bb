package sim

import (
	"errors"

	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/task"
)

func isNotFound(err error) bool { return errors.Is(err, task.ErrNotFound) }

// gather adds up what a process counted in its life.
func (n *node) gather(d *daemon.Node) {
	families, err := d.Metrics().Gather()
	if err != nil {
		n.log("> the metrics of %s: %v", n.name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetCounter() == nil {
				continue
			}
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			n.counts[name] += int(m.GetCounter().GetValue())
		}
	}
}
