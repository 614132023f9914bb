package accesscontrol

import (
	"cmp"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// auditHandlers serve audit records.
type auditHandlers struct {
	*records
	maxScanned int // how many records one request reads at most to find matching ones
}

const auditLogAbout = "Each transaction of the API writes one record of who changed what. The newest record comes first. Without read on audit, you see only changes of objects in namespaces whose bindings you may read, and of the bindings and tokens that apply only there. " +
	"Records of the operation audit-gap say which audit records were removed from etcd; they are listed for every object and operation, and callers without read on audit see only the time range of the missing records. " +
	"A page may have fewer records than its limit, or none, and still have a next page. /v1/audit is unrelated: it checks the consistency of the cluster's records."

// Routes returns the operations on audit records.
func (h *auditHandlers) Routes() []*httpapi.Operation {
	return []*httpapi.Operation{
		{ID: "list-audit-records", Method: http.MethodGet, Path: "/v1/audit-log", Tag: "access", Summary: "List audit records: who changed what", Description: auditLogAbout,
			Status: 200, Answer: reflect.TypeFor[client.List[task.AuditRecord]](), Handler: httpapi.Query(h.listAudit)},
	}
}

// auditQuery are the parameters of the list of audit records.
type auditQuery struct {
	Subject     string    `query:"subject" doc:"Only changes by this subject."`
	Operation   string    `query:"operation" doc:"Only this operation, for example pause-task."`
	Namespace   string    `query:"namespace" doc:"Only changes of an object in this namespace, of its record, or of a binding or a token that applies there."`
	Kind        string    `query:"kind" doc:"Only changes of an object of this kind, for example task or binding."`
	Name        string    `query:"name" doc:"Only changes of an object with this name."`
	Since       task.Time `query:"since" doc:"Only records at or after this time."`
	Until       task.Time `query:"until" doc:"Only records before this time."`
	OldestFirst bool      `query:"oldest_first" default:"false" doc:"Returns the oldest record first. Default: the newest first."`
	httpapi.PageQuery
}

// Check refuses a span of time that contains nothing.
func (q *auditQuery) Check(url.Values) error {
	if !q.Since.IsZero() && !q.Until.IsZero() && !q.Since.Before(q.Until.Time) {
		return task.Invalid(task.CodeBadTime, "until", "is not after since")
	}
	return nil
}

// matches reports whether a record has what the parameters ask for.
func (q *auditQuery) matches(r *task.AuditRecord) bool {
	if r.Gap != nil { // a record that is asked for may be missing
		return q.Subject == "" || r.Subject == "" || r.Subject == q.Subject
	}
	if q.Subject != "" && r.Subject != q.Subject || q.Operation != "" && r.Operation != q.Operation {
		return false
	}
	if q.Namespace == "" && q.Kind == "" && q.Name == "" {
		return true
	}

	return slices.ContainsFunc(r.Objects, func(o task.AuditObject) bool {
		inside := o.Namespace == q.Namespace || o.Kind == "namespace" && o.Name == q.Namespace || access.MatchesNamespace(o.Namespaces, q.Namespace)
		return (q.Namespace == "" || inside) && (q.Kind == "" || o.Kind == q.Kind) && (q.Name == "" || o.Name == q.Name)
	})
}

// listAudit serves audit records.
func (h *auditHandlers) listAudit(c *httpapi.Call, q auditQuery) (httpapi.Answer, error) {
	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	isVisible := func(*task.AuditRecord) bool { return true }
	seesAll := h.callerMay(c, v, access.Read, access.Audit, "")
	if !seesAll {
		if !h.readsBindingsSomewhere(c, v) {
			return httpapi.Answer{}, c.Rights().Require(access.Need{Verb: access.Read, Kind: access.Audit})
		}
		isVisible = func(r *task.AuditRecord) bool { return r.Gap != nil || h.canSeeAudit(c, v, r) }
	}

	p, err := c.Paging(q.PageQuery)
	if err != nil {
		return httpapi.Answer{}, err
	}

	gaps, err := h.findGaps(c, q, seesAll)
	if err != nil {
		return httpapi.Answer{}, err
	}

	read := h.newestFirst(c, q)
	if q.OldestFirst {
		read = h.oldestFirst(c, q)
	}
	read = read.withGaps(gaps, q.OldestFirst)

	var items []task.AuditRecord
	place := p.After
	for scanned := 0; ; {
		list, next, err := read(place)
		if err != nil {
			return httpapi.Answer{}, err
		}

		for i := range list {
			if r := &list[i]; isVisible(r) && q.matches(r) {
				items = append(items, *r)
			}

			last := i == len(list)-1 && next == ""
			if scanned++; !last && (len(items) == p.Limit || scanned == h.maxScanned) {
				return httpapi.Page(c, p, items, list[i].ID)
			}
		}

		if place = next; place == "" {
			return httpapi.Page(c, p, items, "")
		}
	}
}

// canSeeAudit reports whether all objects of a record are in namespaces whose bindings the caller may read. A binding or a
// token is in all namespaces in which it applied before or after the change: a caller who sees the record could read both.
func (h *auditHandlers) canSeeAudit(c *httpapi.Call, v *authority.View, r *task.AuditRecord) bool {
	for _, o := range r.Objects {
		namespaces := o.Namespaces
		if o.Namespace != "" {
			namespaces = []string{o.Namespace}
		}

		if !h.callerMayInEach(c, v, access.Read, namespaces) {
			return false
		}
	}

	return len(r.Objects) > 0
}

// auditReader reads some records that follow a place; "": the first ones. next is "" after the last.
type auditReader func(place string) (list []task.AuditRecord, next string, err error)

// findGaps returns the gaps that concern the time that is asked for, as records. A gap is listed at the time of the newest
// record that is missing, or at the end of that time. Callers who may not see all records learn only that some are missing.
func (h *auditHandlers) findGaps(c *httpapi.Call, q auditQuery, seesAll bool) ([]task.AuditRecord, error) {
	all, err := h.store.ListAuditGaps(c.Context())
	if err != nil {
		return nil, err
	}

	var gaps []task.AuditRecord
	for _, r := range all {
		if r.Time.Before(q.Since.Time) || !q.Until.IsZero() && !r.Gap.From.Before(q.Until.Time) {
			continue
		}

		if !seesAll {
			r.Subject, r.Revision, r.Gap = "", 0, &task.AuditGap{Why: r.Gap.Why, From: r.Gap.From, To: r.Gap.To}
		}
		if last := q.Until.Add(-time.Millisecond); !q.Until.IsZero() && r.Time.After(last) {
			r.Time, r.ID = task.At(last), record.AuditTime(last)+r.ID[len(record.AuditTime(last)):]
		}
		gaps = append(gaps, r)
	}

	return gaps, nil
}

// withGaps adds gaps to what a reader reads, in the order of ids.
func (r auditReader) withGaps(gaps []task.AuditRecord, oldestFirst bool) auditReader {
	if len(gaps) == 0 {
		return r
	}

	return func(place string) ([]task.AuditRecord, string, error) {
		list, next, err := r(place)
		if err != nil {
			return nil, "", err
		}

		for _, g := range gaps {
			isHere := (place == "" || g.ID < place) && (next == "" || g.ID >= next)
			if oldestFirst {
				isHere = (place == "" || g.ID > place) && (next == "" || g.ID <= next)
			}
			if isHere {
				list = append(list, g)
			}
		}

		slices.SortStableFunc(list, func(a, b task.AuditRecord) int {
			if oldestFirst {
				return cmp.Compare(a.ID, b.ID)
			}
			return cmp.Compare(b.ID, a.ID)
		})

		return list, next, nil
	}
}

// newestFirst reads records backwards.
func (h *auditHandlers) newestFirst(c *httpapi.Call, q auditQuery) auditReader {
	return func(place string) ([]task.AuditRecord, string, error) {
		if place == "" {
			// Clocks of nodes differ: what another node has written may seem to be of the future.
			until := h.now().Add(time.Hour)
			if !q.Until.IsZero() {
				until = q.Until.Time
			}
			place = record.AuditTime(until)
		}

		return h.store.NewestAudit(c.Context(), q.Since.Time, place)
	}
}

// auditPerRead is the number of records that are read at once.
const auditPerRead = 500

// oldestFirst reads records forwards.
func (h *auditHandlers) oldestFirst(c *httpapi.Call, q auditQuery) auditReader {
	return func(place string) ([]task.AuditRecord, string, error) {
		if place == "" && !q.Since.IsZero() {
			place = record.AuditTime(q.Since.Time)
		}

		list, next, err := h.store.AuditRecords(c.Context(), place, auditPerRead)
		if err != nil || q.Until.IsZero() {
			return list, next, err
		}

		end := record.AuditTime(q.Until.Time)
		if i := slices.IndexFunc(list, func(r task.AuditRecord) bool { return r.ID >= end }); i >= 0 {
			return list[:i], "", nil
		}

		return list, next, nil
	}
}
