package accesscontrol

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// records reads access records, and changes them within the rights of a caller. All handlers share one.
type records struct {
	store  *store.Store
	keeper Keeper
	now    httpapi.Clock
}

// awaitTimeout limits how long a change waits until this node knows it.
const awaitTimeout = 2 * time.Second

// changeRecords makes a change of access records: f judges it by the newest records and writes it with the rights that it
// gets. f is called again if the records have changed meanwhile.
func (r *records) changeRecords(c *httpapi.Call, f func(v *authority.View, rights *httpapi.Rights) error) error {
	return tooMany(httpapi.RetryConflict(c.Context(), func() error {
		v, err := r.keeper.Current(c.Context())
		if err != nil {
			return err
		}

		return f(v, c.Rights().Part())
	}))
}

// tooMany says in the API's words that access records were changed too often.
func tooMany(err error) error {
	if !errors.Is(err, task.ErrTooMany) {
		return err
	}

	return httpapi.Fail(http.StatusTooManyRequests, client.CodeRateLimited, "access records were changed too often within the last second, by you or in the whole cluster").
		WithHint("try again in a second").Because(err)
}

// awaitView waits until this node knows a change, so that the next request that it receives is judged by it. The change has
// been made: if the wait ends without success, other requests may be judged by the records before it for a moment.
func (r *records) awaitView(c *httpapi.Call, is func(v *authority.View) bool) {
	ctx, cancel := context.WithTimeout(c.Context(), awaitTimeout)
	defer cancel()
	_, _ = r.keeper.Await(ctx, is)
}

// caller returns the caller as access records know it.
func caller(c *httpapi.Call) access.Caller { return httpapi.CallerOf(c.Context()).Subject() }

// callerMay reports whether the caller may do something, by the records of a view.
func (r *records) callerMay(c *httpapi.Call, v *authority.View, verb access.Verb, k access.Kind, namespace string) bool {
	return v.Allows(caller(c), access.Need{Verb: verb, Kind: k, Namespace: namespace}, r.now())
}

// callerMayInEach reports whether the caller may do something to the bindings of each of the namespaces. A prefix that ends
// in * is covered only by a prefix: no name contains *.
func (r *records) callerMayInEach(c *httpapi.Call, v *authority.View, verb access.Verb, namespaces []string) bool {
	for _, ns := range namespaces {
		if !r.callerMay(c, v, verb, access.Bindings, ns) {
			return false
		}
	}

	return len(namespaces) > 0
}

// readsBindingsSomewhere reports whether the caller may read the bindings of at least one namespace.
func (r *records) readsBindingsSomewhere(c *httpapi.Call, v *authority.View) bool {
	for _, ns := range v.Namespaces() {
		if r.callerMay(c, v, access.Read, access.Bindings, ns) {
			return true
		}
	}

	return false
}

// requireReadBindings refuses callers who may read neither the bindings of a namespace nor access. It also protects roles:
// a caller who reads bindings must be able to understand them.
func (r *records) requireReadBindings(c *httpapi.Call, v *authority.View, rights *httpapi.Rights) error {
	if r.readsBindingsSomewhere(c, v) {
		return nil
	}

	return rights.Require(access.Need{Verb: access.Read, Kind: access.Access})
}

// refuseExcess returns the error for a grant of more than its author holds; nil if there is no excess.
func refuseExcess(c *httpapi.Call, e *access.Excess, err error) error {
	if err != nil || e == nil {
		return err
	}

	where := "in the cluster"
	if e.Namespace != "" {
		where = "in namespace " + e.Namespace
	}

	return httpapi.Fail(http.StatusForbidden, client.CodeTooBroad, "%s cannot grant a right that it does not have itself, with these labels and until this time: %s on %s %s",
		httpapi.CallerOf(c.Context()).Name(), e.Verb, e.Kind, where)
}

// keepAdmin has the writes of rights fail if they would leave nobody who can administer the cluster. after reports whether
// that would be so. If nobody can already, nothing is refused.
func (r *records) keepAdmin(rights *httpapi.Rights, after func(v *authority.View) bool) error {
	return rights.Check(func(v *authority.View) error {
		if v.LastAdmin(r.now(), func(string, string) bool { return false }) || !after(v) {
			return nil
		}

		return httpapi.Fail(http.StatusConflict, client.CodeLastAdmin,
			"the cluster would have no administrator: an enabled subject with the role admin in the cluster, and with a valid token without a scope or a client certificate").
			WithHint("first give the role admin in the cluster to another subject, and create a token for it")
	})
}

// existing returns a record if it exists, and otherwise nil.
func existing[T any](exists bool, record *T) *T {
	if !exists {
		return nil
	}
	return record
}

// checkConditions compares If-Match and If-None-Match with a record's revision; 0: there is no record.
func checkConditions(c *httpapi.Call, what, name string, revision int64) error {
	switch {
	case c.IfNoneMatch && revision > 0:
		return fmt.Errorf("%s %s: %w", what, name, task.ErrExists)
	case c.IfMatch != 0 && revision == 0:
		return notFound(what, name)
	case c.IfMatch != 0 && c.IfMatch != revision:
		return fmt.Errorf("%s %s is at revision %d: %w, %d", what, name, revision, task.ErrStale, c.IfMatch)
	}

	return nil
}

func notFound(what, name string) error { return fmt.Errorf("%s %s: %w", what, name, task.ErrNotFound) }

// sameName refuses a body that names another object than the path. An absent name is that of the path.
func sameName(in *string, path string) error {
	if *in != "" && *in != path {
		return task.Invalid(task.CodeBadValue, "name", "%s does not match the name in the path, %s", task.Quote(*in), path)
	}
	*in = path

	return nil
}

// answerRecord answers with a record and its revision.
func answerRecord(body any, revision int64) (httpapi.Answer, error) {
	a := httpapi.Answer{Status: http.StatusOK, Body: body}
	if revision > 0 {
		a.Header = http.Header{"Etag": {httpapi.ETag(revision)}}
	}

	return a, nil
}

// pageOf answers with the page of a list that is in the memory of this node. key returns what the list is sorted by.
func pageOf[T any](c *httpapi.Call, q httpapi.PageQuery, list []T, key func(T) string) (httpapi.Answer, error) {
	p, err := c.Paging(q)
	if err != nil {
		return httpapi.Answer{}, err
	}

	var items []T
	for _, item := range list {
		if p.After != "" && key(item) <= p.After {
			continue
		}
		if len(items) == p.Limit {
			return httpapi.Page(c, p, items, key(items[len(items)-1]))
		}
		items = append(items, item)
	}

	return httpapi.Page(c, p, items, "")
}

// dryRunQuery is the parameter of routes that support a dry run.
type dryRunQuery struct {
	DryRun bool `query:"dry_run" default:"false" doc:"Checks everything but writes nothing."`
}
