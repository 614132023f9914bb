package cluster

import (
	"context"
	"fmt"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// getFormat serves the format of records in force, and which formats are possible.
func (h *Handlers) getFormat(c *httpapi.Call) (httpapi.Answer, error) {
	f, err := h.Store.Formats(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}
	return httpapi.Answer{Status: http.StatusOK, Body: h.formatStatus(f)}, nil
}

// formatStatus describes the formats as users see them. Because names a node that prevents a newer format.
func (h *Handlers) formatStatus(f store.Formats) client.FormatStatus {
	st := client.FormatStatus{Format: f.Cluster.InForce(), Wanted: f.Cluster.FormatWanted, WaitsFor: f.WaitsFor()}
	var because []task.Node
	if st.Possible, because = f.Possible(); st.Possible < h.Store.Understands() && len(because) > 0 {
		st.Because = fmt.Sprintf("node %s (%s)", because[0].Name, because[0].Version)
	}

	return st
}

// setFormat serves upgrades and downgrades of the record format. Format 0 requests the newest format that all
// nodes understand. An older format is only recorded as wanted; the leader puts it into force when no record
// needs the newer one.
func (h *Handlers) setFormat(c *httpapi.Call) (httpapi.Answer, error) {
	var ask client.FormatRequest
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}

	var st client.FormatStatus
	err := httpapi.RetryConflict(c.Context(), func() error {
		f, err := h.Store.Formats(c.Context())
		if err != nil {
			return err
		}

		is := f.Cluster.InForce()
		if ask.Format < 0 || ask.Format > is {
			return task.Invalid(task.CodeOutOfRange, "format", "%d is out of range: 1 to %d, the current format, or 0 for the newest that all nodes understand", ask.Format, is)
		}

		// An upgrade takes effect at once. The format must be one that all nodes understand, and this node, too.
		to := is
		if ask.Format == 0 {
			possible, because := f.Possible()
			if possible < is {
				return httpapi.Fail(http.StatusConflict, client.CodeConflict, "node %s (%s) does not understand the current format, %d: stop it", because[0].Name, because[0].Version, is)
			}
			to = min(possible, h.Store.Understands())
		}

		if to != is || ask.Format != f.Cluster.FormatWanted {
			f.Cluster.Cluster = f.Cluster.MarkChanged(c.Actor(), h.Now.Stamp(), "")
		}

		if err := h.Store.As(c.Rights()).SetFormat(c.Context(), f, to, ask.Format); err != nil {
			return err
		}

		if f, err = h.Store.Formats(c.Context()); err == nil {
			st = h.formatStatus(f)
		}

		return err
	})

	return httpapi.Answer{Status: http.StatusOK, Body: st}, err
}

// lookAtFormat adds the format of records to the status, and warns about a node that does not understand it.
// Such a node cannot join, unless somebody has edited the cluster's record by hand.
func (h *Handlers) lookAtFormat(ctx context.Context, st *client.ClusterStatus) {
	f, err := h.Store.Formats(ctx)
	if err != nil {
		return
	}

	st.Format = h.formatStatus(f)
	for _, n := range f.Nodes {
		if n.Understands() < f.Cluster.InForce() {
			st.WarningDetails = append(st.WarningDetails, newWarning(task.WarnFormatUnknown, "node %s (%s) only understands record format %d, but format %d is in use: it misreads runs; stop it, or run a newer version there",
				n.Name, n.Version, n.Understands(), f.Cluster.InForce()))
		}
	}

	if st.Format.WaitsFor != "" {
		st.WarningDetails = append(st.WarningDetails, newWarning(task.WarnDowngradeWaits, "the downgrade to format %d waits for %s", st.Format.Wanted, st.Format.WaitsFor))
	}
}
