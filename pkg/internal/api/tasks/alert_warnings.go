package tasks

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// alertWarnings returns, for each of some tasks that were written, what its author should know about its alerts. It reads the entries of
// the receivers once for all tasks. The tasks have been written, so a failure of etcd only means that a warning is missing.
func (h *Handlers) alertWarnings(ctx context.Context, list []store.Stored) [][]task.Warning {
	warnings := make([][]task.Warning, len(list))
	receivers, err := h.receiversOf(ctx, list)

	for i := range list {
		st := &list[i]
		if st.Task.Alerts == nil && st.Task.Receiver == nil {
			continue
		}

		warnings[i] = alert.Advice(&st.Task.Spec, st.Entry.Timing(), h.Now(), h.longestRun(ctx, st))
		for j, name := range st.Task.Alerts.Receivers(st.Ref.Namespace) {
			namespace, _, _ := strings.Cut(name, "/")
			if err != nil || receivers[name].Accepts(namespace, st.Ref.Namespace) {
				continue
			}

			// The text is the same whether the receiver is missing or refuses the namespace, because the author may not be
			// allowed to know that it exists.
			text := fmt.Sprintf("alerts.notify[%d]: %s is no receiver of the alerts of namespace %s; it gets none until it is", j, name, st.Ref.Namespace)
			warnings[i] = append(warnings[i], task.Warning{Code: task.WarnNoReceiver, Text: text})
		}
	}

	return warnings
}

// receiversOf reads the receivers that tasks name, by NAMESPACE/NAME. One that is missing, or that is another task, is nil.
func (h *Handlers) receiversOf(ctx context.Context, list []store.Stored) (map[string]*task.Receiver, error) {
	var names []string
	var refs []record.Ref
	found := map[string]*task.Receiver{}
	for i := range list {
		for _, name := range list[i].Task.Alerts.Receivers(list[i].Ref.Namespace) {
			if _, seen := found[name]; seen {
				continue
			}

			namespace, inner, _ := strings.Cut(name, "/")
			names, refs = append(names, name), append(refs, h.Ref(namespace, inner))
			found[name] = nil
		}
	}

	if len(refs) == 0 {
		return nil, nil
	}

	entries, err := h.Store.Entries(ctx, refs)
	for i, e := range entries {
		if e != nil {
			found[names[i]] = e.Receiver
		}
	}

	// A dry run has not written the receivers of its own batch.
	for i := range list {
		if name := list[i].Ref.Namespace + "/" + list[i].Ref.Name; found[name] == nil && list[i].Task.Receiver != nil {
			found[name] = list[i].Task.Receiver
		}
	}

	return found, err
}

// longestRun returns the longest time that a run of a task took, of those in its history. Only success_by needs it.
func (h *Handlers) longestRun(ctx context.Context, st *store.Stored) (longest time.Duration) {
	if st.Task.Alerts == nil || st.Task.Alerts.SuccessBy == "" || st.Task.Generation <= 1 {
		return 0
	}

	_, _, err := h.Store.EachEnded(ctx, st.Ref, 0, time.Time{}, func(r *task.Run) {
		if r.UID == st.Task.UID && r.State == task.Succeeded && !r.StartedAt.IsZero() {
			longest = max(longest, r.EndedAt.Sub(r.StartedAt.Time))
		}
	})
	if err != nil {
		return 0
	}

	return longest
}
